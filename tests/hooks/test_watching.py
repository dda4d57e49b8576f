"""A loop's own requests as mitmproxy's addons are told of them."""

import logging

import pytest
from mitmproxy import exceptions, http
from mitmproxy.test import taddons
from mitmproxy.test.tflow import tclient_conn

from addon.hooks.watching import Watching
from addon.loop.upstream import Address

ADDRESS = Address("POST", "https://gemini.test/v1beta/models/m:generateContent", [(b"x", b"1")])


class Told:
    """Notes the hooks that it was called with; `parts` are told as well."""

    def __init__(self, *parts: object, raises: Exception | None = None) -> None:
        self.name = f"told-{id(self)}"
        self.addons = parts
        self.raises = raises
        self.heard: list[str] = []

    async def requestheaders(self, flow: http.HTTPFlow) -> None:
        self.heard.append("requestheaders")

    def request(self, flow: http.HTTPFlow) -> None:
        self.heard.append("request")
        if self.raises is not None:
            raise self.raises

    def response(self, flow: http.HTTPFlow) -> None:
        assert flow.response is not None
        self.heard.append(f"response {flow.response.text}")


async def exchange() -> None:
    watched = await Watching().of(tclient_conn(), "default", b"{}").sent(ADDRESS, b"{}")
    await watched.answered(200, [(b"content-type", b"text/plain")])
    watched.received(b"so")
    await watched.ended(None)


async def test_every_addon_is_told_and_the_parts_of_addons_too() -> None:
    part = Told()
    first, last = Told(part), Told()
    with taddons.context() as context:
        context.master.addons.add(first, object(), last)
        await exchange()
    assert first.heard == part.heard == last.heard == ["requestheaders", "request", "response so"]


async def test_a_mistake_in_one_addon_is_logged_and_the_next_is_told(caplog: pytest.LogCaptureFixture) -> None:
    first, last = Told(raises=RuntimeError("a mistake")), Told()
    with taddons.context() as context:
        context.master.addons.add(first, last)
        await exchange()
    assert "a mistake" in caplog.text
    assert last.heard == ["requestheaders", "request", "response so"]


async def test_an_addon_may_keep_the_others_from_being_told() -> None:
    first, last = Told(raises=exceptions.AddonHalt()), Told()
    with taddons.context() as context:
        context.master.addons.add(first, last)
        await exchange()
    assert last.heard == ["requestheaders", "response so"]


def test_the_http_client_says_nothing_of_its_steps_even_where_everything_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert not logging.getLogger("httpcore2.http11").isEnabledFor(logging.DEBUG)
        assert not logging.getLogger("httpx2").isEnabledFor(logging.INFO)
