"""The stages of a streamed answer, and the answers that must not stream."""

from collections.abc import Callable, Iterable

import pytest
from mitmproxy import http
from mitmproxy.addons.modifybody import ModifyBody
from mitmproxy.test import taddons, tflow

from addon.hooks.streams import comes_whole, ended_whole, receive_whole, run_later_stages, start, stream_through
from addon.settings import Settings


class Marks:
    """Appends its mark to each piece, and a capital mark at the end."""

    def __init__(self, mark: bytes) -> None:
        self.mark = mark

    def __call__(self, data: bytes) -> bytes:
        return data + self.mark if data else self.mark.upper()


def generous(data: bytes) -> Iterable[bytes]:
    """Gives pieces of one byte."""
    return [data[n : n + 1] for n in range(len(data))]


def silent(data: bytes) -> list[bytes]:
    return []


def flow_of(stream: "Stage | bool" = False, body: bytes | None = None) -> http.HTTPFlow:
    flow: http.HTTPFlow = tflow.tflow(resp=True)
    assert flow.response is not None
    flow.response.stream = stream
    flow.response.data.content = body
    flow.response.headers.pop("content-length", None)
    return flow


def streamed(flow: http.HTTPFlow, *pieces: bytes) -> bytes:
    assert start(flow)
    assert flow.response is not None
    stream = flow.response.stream
    assert callable(stream)
    given = [stream(piece) for piece in (*pieces, b"")]
    return b"".join(one if isinstance(one, bytes) else b"".join(one) for one in given)


type Stage = Callable[[bytes], bytes | Iterable[bytes]]


@pytest.mark.parametrize(
    ("early", "late", "last", "expected"),
    [
        (False, None, False, b"aoboO"),
        (True, None, False, b"aoboO"),
        (Marks(b"e"), None, False, b"aeobeoEoO"),
        (False, Marks(b"l"), False, b"aolbolOlL"),
        (Marks(b"e"), Marks(b"l"), False, b"aeolbeolEoOlL"),
        (Marks(b"e"), Marks(b"l"), True, b"aelobeloElLoO"),
        (False, True, False, b"aoboO"),
        (generous, generous, False, b"aoboO"),
        (silent, None, False, b"O"),
        (False, silent, False, b""),
    ],
)
def test_an_answer_goes_through_the_scripts_stages_and_the_addons_own(
    early: Stage | bool, late: Stage | bool | None, last: bool, expected: bytes
) -> None:
    flow = flow_of(early)
    stream_through(flow, Marks(b"o"), last=last)
    assert flow.response is not None
    if late is not None:
        flow.response.stream = late
    assert streamed(flow, b"a", b"b") == expected
    assert not ended_whole(flow)


def test_work_before_a_stream_is_done_when_it_begins() -> None:
    begun: list[http.HTTPFlow] = []
    flow = flow_of()
    stream_through(flow, Marks(b"o"), begun.append)
    assert begun == []
    streamed(flow, b"a")
    assert begun == [flow]


@pytest.mark.parametrize(
    ("early", "late", "expected"),
    [
        (False, None, b"a"),
        (True, True, b"a"),
        (Marks(b"e"), None, b"aeE"),
        (False, Marks(b"l"), b"alL"),
        (Marks(b"e"), Marks(b"l"), b"aeElL"),
    ],
)
def test_an_answer_that_has_to_come_whole_goes_through_them_whole(
    early: Stage | bool, late: Stage | bool | None, expected: bytes
) -> None:
    flow = flow_of(early)
    receive_whole(flow)
    assert flow.response is not None
    assert flow.response.stream is False
    if late is not None:
        flow.response.stream = late
        assert not start(flow), "whatever is wanted"
    flow.response.data.content = b"a"
    assert ended_whole(flow)
    run_later_stages(flow)
    assert flow.response.data.content == expected
    if expected != b"a":
        assert flow.response.headers["content-length"] == str(len(expected))


@pytest.mark.parametrize("early", [True, False])
def test_a_callable_that_fails_shows_nothing(early: bool, caplog: pytest.LogCaptureFixture) -> None:
    def fails(data: bytes) -> bytes:
        raise ValueError("on purpose")

    flow = flow_of(fails if early else False)
    receive_whole(flow)
    assert flow.response is not None
    if not early:
        flow.response.stream = fails
    flow.response.data.content = b"a secret"
    assert ended_whole(flow)
    run_later_stages(flow)
    assert (flow.response.status_code, flow.response.content) == (502, b"")
    assert "on purpose" in caplog.text


def test_a_script_may_have_an_answer_whole_that_would_stream() -> None:
    flow = flow_of()
    stream_through(flow, Marks(b"o"))
    assert flow.response is not None
    flow.response.stream = False
    flow.response.data.content = b"a"
    assert ended_whole(flow)
    run_later_stages(flow)
    assert flow.response.data.content == b"a", "the addon takes it in its own way"


def test_flows_of_others_stream_as_they_would() -> None:
    flow = flow_of(mine := Marks(b"x"))
    assert start(flow)
    assert flow.response is not None
    assert flow.response.stream is mine


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
        assert comes_whole(flow_of(), Settings(stream="off"))


def test_without_the_addon_of_the_rules_answers_stream() -> None:
    with taddons.context():
        assert not comes_whole(flow_of(), Settings())
