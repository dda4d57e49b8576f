"""Answers that must not stream."""

import io
from collections.abc import Callable

import pytest
from mitmproxy import http
from mitmproxy.addons.modifybody import ModifyBody
from mitmproxy.io import FlowReader, FlowWriter
from mitmproxy.test import taddons, tflow

from addon.hooks.streams import comes_whole, pass_whole, receive_whole
from addon.settings import Settings


def flow_of(stream: "Stage | bool" = False, body: bytes | None = None) -> http.HTTPFlow:
    flow: http.HTTPFlow = tflow.tflow(resp=True)
    assert flow.response is not None
    flow.response.stream = stream
    flow.response.data.content = body
    flow.response.headers.pop("content-length", None)
    return flow


type Stage = Callable[[bytes], bytes | list[bytes]]


def marks(data: bytes) -> bytes:
    return data + b"e" if data else b"E"


def later(data: bytes) -> list[bytes]:
    """Gives pieces of one byte."""
    return [*(data[n : n + 1] for n in range(len(data))), b"l"]


@pytest.mark.parametrize(
    ("early", "late", "expected"),
    [
        (False, None, b"a"),
        (True, True, b"a"),
        (marks, None, b"aeE"),
        (False, later, b"all"),
        (marks, later, b"all"),
        (marks, False, b"a"),
    ],
)
def test_the_last_callable_of_a_script_gets_the_whole_answer(
    early: Stage | bool, late: Stage | bool | None, expected: bytes
) -> None:
    flow = flow_of(early)
    receive_whole(flow)
    assert flow.response is not None
    if late is not None:
        flow.response.stream = late
    assert flow.response.stream is False, "whatever is wanted"
    flow.response.data.content = b"a"
    pass_whole(flow)
    pass_whole(flow)
    assert flow.response.data.content == expected
    if expected != b"a":
        assert flow.response.headers["content-length"] == str(len(expected))


def test_a_callable_that_fails_shows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fails(data: bytes) -> bytes:
        raise ValueError("on purpose")

    flow = flow_of(fails)
    receive_whole(flow)
    assert flow.response is not None
    flow.response.data.content = b"a secret"
    pass_whole(flow)
    assert (flow.response.status_code, flow.response.content) == (502, b"")
    assert "on purpose" in caplog.text


def test_copies_and_files_hold_a_response_of_mitmproxy_s_own() -> None:
    flow = flow_of()
    receive_whole(flow)
    assert flow.response is not None
    flow.response.data.content = b"a"
    file = io.BytesIO()
    FlowWriter(file).add(flow)
    file.seek(0)
    (read,) = FlowReader(file).stream()
    flow.backup()
    flow.response.content = b"changed"
    copy = flow.copy()
    flow.revert()
    for one, content in ((copy, b"changed"), (flow, b"a"), (read, b"a")):
        assert isinstance(one, http.HTTPFlow)
        assert type(one.response) is http.Response
        assert (one.response.content, one.response.stream) == (content, False)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], False),
        (["|a|b"], True),
        (["|~q|a|b"], False),
        (["|~s|a|b"], True),
        (["|~u elsewhere|a|b"], False),
        (["|~u elsewhere|a|b", "|~u address|a|b"], True),
        (["/~bs x/a/b"], True),
        (["/~b x/a/b"], True),
        (["/~bq x/a/b"], False),
        (["/~bq content/a/b"], True),
        (["/!~bs x/a/b"], True),
        (["/~bs x & ~u elsewhere/a/b"], False),
        (["/~bs x & ~u address/a/b"], True),
        (["/~bs x | ~u elsewhere/a/b"], True),
        (["/!(~bs x | ~u address)/a/b"], False),
        (["/!(~bs x & ~u elsewhere)/a/b"], True),
        (["/~c 200/a/b"], True),
        (["/~c 404/a/b"], False),
        (["/~q | ~c 404/a/b"], False),
    ],
)
def test_an_answer_that_a_rule_may_match_comes_whole(rules: list[str], expected: bool) -> None:
    rewriting = ModifyBody()
    with taddons.context(rewriting) as context:
        context.configure(rewriting, modify_body=rules)
        assert comes_whole(flow_of(), Settings()) is expected
        assert comes_whole(flow_of(), Settings(stream=False))


def test_without_the_addon_of_the_rules_answers_stream() -> None:
    with taddons.context():
        assert not comes_whole(flow_of(), Settings())
