"""Gemini's own wire: the envelope of a response, the framing of events, and the next request of a loop."""

from typing import Any

import pytest

from addon.core.framing.documents import decode, encode
from addon.core.framing.streams import ArrayDecoder, SseDecoder
from addon.surfaces.incoming import Framing, Operation, Target
from addon.surfaces.surface import Wire

CONFIG = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}, "retrievalConfig": {"a": 1}}


def wire(framing: Framing = Framing.JSON, surface: str = "developer") -> Wire:
    operation = Operation.GENERATE if framing is Framing.JSON else Operation.STREAM
    enveloped = surface == "codeassist"
    request, response = (("request",), ("response",)) if enveloped else ((), ())
    return Wire(Target(surface, operation, framing, "m", request, response))


def body(**members: Any) -> bytes:
    return encode({"contents": [{"role": "user", "parts": [{"text": "hi"}]}], **members})


@pytest.mark.parametrize(
    ("config", "mode", "expected"),
    [
        pytest.param(CONFIG, None, CONFIG, id="the first round is as the client has it"),
        pytest.param(
            CONFIG,
            "AUTO",
            {"functionCallingConfig": {"mode": "AUTO"}, "retrievalConfig": {"a": 1}},
            id="what forces calls forces the first step only",
        ),
        pytest.param(
            CONFIG,
            "NONE",
            {"functionCallingConfig": {"mode": "NONE"}, "retrievalConfig": {"a": 1}},
            id="the last round forbids calls",
        ),
        pytest.param(None, "AUTO", None, id="nothing forces calls"),
        pytest.param(None, "NONE", {"functionCallingConfig": {"mode": "NONE"}}, id="forbidden where nothing was said"),
        pytest.param(
            {"functionCallingConfig": {"mode": "VALIDATED"}},
            "AUTO",
            {"functionCallingConfig": {"mode": "VALIDATED"}},
            id="a mode that allows text stays",
        ),
    ],
)
def test_the_mode_of_later_rounds(config: Any, mode: str | None, expected: Any) -> None:
    speaks = wire()
    sent = body(tools=[{"functionDeclarations": [{"name": "f"}]}], **({"toolConfig": config} if config else {}))
    assert decode(speaks.next_request(speaks.read(sent), [], mode)).get("toolConfig") == expected


def test_without_tools_there_is_no_mode_to_set() -> None:
    speaks = wire()
    sent = body(toolConfig={"retrievalConfig": {}})
    assert speaks.next_request(speaks.read(sent), [], "NONE") == sent


def test_a_loops_contents_follow_the_clients() -> None:
    speaks = wire(surface="codeassist")
    request = speaks.read(encode({"model": "m", "request": decode(body()), "later": 1}))
    added = {"role": "model", "parts": [{"text": "so"}]}
    sent = decode(speaks.next_request(request, [added], None))
    assert sent["request"]["contents"][1:] == [added]
    assert (sent["model"], sent["later"]) == ("m", 1)


@pytest.mark.parametrize("surface", ["developer", "codeassist"])
@pytest.mark.parametrize("framing", list(Framing))
def test_a_written_event_reads_back_equal(surface: str, framing: Framing) -> None:
    speaks = wire(framing, surface)
    answers: list[dict[str, Any]] = [{"candidates": [], "responseId": f"r{n}"} for n in range(3)]
    raw = {"response": {}, "traceId": "t"} if surface == "codeassist" else None
    if framing is Framing.JSON:
        assert speaks.unwrap(decode(speaks.whole_body(answers[0], raw))) == answers[0]
        return
    decoder = SseDecoder() if framing is Framing.SSE else ArrayDecoder()
    stream = b"".join(speaks.event(answer, raw) for answer in answers) + speaks.end()
    items = [item for item in [*decoder.feed(stream), *decoder.flush()] if item.data is not None]
    documents = [decode(item.data) for item in items if item.data is not None]
    assert [speaks.unwrap(document) for document in documents] == answers
    assert all("traceId" in document for document in documents) is (surface == "codeassist")
    assert b"".join(wire(framing, surface).passthrough_event(item) for item in items[:1]) == items[0].raw


def test_an_array_opens_once_and_closes_once() -> None:
    speaks = wire(Framing.ARRAY)
    assert speaks.end() == b"[]"
    assert decode(speaks.event({"a": 1}) + speaks.event({"a": 2}) + speaks.end()) == [{"a": 1}, {"a": 2}]


def test_an_event_in_another_framing_is_reframed() -> None:
    (item,) = ArrayDecoder().feed(b'[{"a":\n1}')
    assert wire(Framing.SSE).passthrough_event(item) == b'data: {"a": 1}\r\n\r\n'


@pytest.mark.parametrize(
    ("surface", "framing", "expected"),
    [
        ("developer", Framing.JSON, {"error": {}}),
        ("developer", Framing.SSE, {"error": {}}),
        ("codeassist", Framing.JSON, {"error": {}}),
        ("codeassist", Framing.SSE, [{"error": {}}]),
    ],
)
def test_an_error_before_any_stream_has_the_surfaces_form(surface: str, framing: Framing, expected: Any) -> None:
    assert decode(wire(framing, surface).error({"error": {}})) == expected


@pytest.mark.parametrize("document", [None, [], "text", {"error": {"code": 400}}])
def test_an_error_is_no_response(document: object) -> None:
    assert wire().unwrap(document) is None
