"""Warnings whose words clients choose."""

import logging

import pytest

from addon.graft.grafter import MOST_WARNINGS, MOST_WARNINGS_OF_A_KIND, WARNING_WINDOW, Warner


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "toolgraft")
    return caplog


def test_each_is_said_once(warnings: pytest.LogCaptureFixture) -> None:
    warner = Warner(lambda: 1.0)
    for _ in range(5):
        warner.warn("a thing: this")
        warner.warn("a thing: that")
    assert warnings.messages == ["a thing: this", "a thing: that"]


def test_one_kind_does_not_silence_the_others(warnings: pytest.LogCaptureFixture) -> None:
    warner = Warner(lambda: 1.0)
    for number in range(1000):
        warner.warn(f"the request was passed on: {number}")
    warner.warn("the store failed: no space")
    assert warnings.messages[-1] == "the store failed: no space"
    assert len(warnings.messages) == MOST_WARNINGS_OF_A_KIND + 2


def test_there_is_an_end_to_all_of_them_and_it_is_told_how_many_were_left_out(
    warnings: pytest.LogCaptureFixture,
) -> None:
    now = 1.0
    warner = Warner(lambda: now)
    for number in range(10_000):
        warner.warn(f"session s{number}: {'x' * 100_000}")
    assert len(warnings.messages) == MOST_WARNINGS + 1
    assert max(map(len, warnings.messages)) <= 2000
    assert "others are left out" in warnings.messages[-1]
    now += WARNING_WINDOW
    warner.warn("session s1: again")
    assert warnings.messages[-2:] == [f"{10_000 - MOST_WARNINGS} warnings were left out", "session s1: again"]
    assert len(warner._logged) == 1
