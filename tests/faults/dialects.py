"""Clients' requests, upstream answers, and clients' readings of answers, on each surface and at the front doors."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

MODEL = "gemini-3-flash-preview"

Json = dict[str, Any]


class Call(NamedTuple):
    """A call in an upstream's answer. Raw JSON: `args`, and `key`, the member or value that marks it as a call."""

    name: str
    args: bytes = b"{}"
    key: bytes = b""


class Answered(NamedTuple):
    body: bytes
    kind: str


class Outcome(NamedTuple):
    """A client's reading of an answer. `how`: "whole", "error", or a description; `text`: the model's."""

    how: str
    text: str = ""


def ended(status: int, text: str, *, is_whole: bool) -> Outcome:
    return Outcome("whole" if is_whole and status == 200 else f"{status}, without an end", text)


def is_later_round(body: bytes) -> bool:
    """Whether an upstream request contains the result of a call."""
    return any(key in body for key in (b'"functionResponse"', b'"tool_call_id"', b'"function_result"'))


class Dialect:
    """Gemini's format. `paths`: of a request, by the framing of its answer."""

    name = "Gemini"
    key = b'"functionCall"'
    keys: ClassVar[Mapping[str, bytes]] = {"snake": b'"function_call"', "escaped": rb'"function\u0043all"'}
    paths: ClassVar[Mapping[str, str]] = {
        "JSON": f"/v1beta/models/{MODEL}:generateContent",
        "SSE": f"/v1beta/models/{MODEL}:streamGenerateContent?alt=sse",
        "array": f"/v1beta/models/{MODEL}:streamGenerateContent",
    }
    is_door = False

    def speaks(self, path: str) -> bool:
        return path.partition("?")[0].endswith(":generateContent") or ":streamGenerateContent" in path

    def framing(self, path: str, body: bytes) -> str:
        """The framing of the answer to a request."""
        if "alt=sse" in path:
            return "SSE"
        return "array" if ":streamGenerateContent" in path else "JSON"

    # --- the client -------------------------------------------------------------------------------------------

    def request(self, framing: str, words: str = "hi") -> Json:
        return {"contents": [{"role": "user", "parts": [{"text": words}]}]}

    def outcome(self, status: int, text: str) -> Outcome:
        """Raises AssertionError for an error that is not in the surface's form."""
        try:
            documents = self.documents(text)
            if not documents:
                raise ValueError("nothing")
        except ValueError:
            return Outcome(f"{status}, unreadable")
        return self.outcome_of(status, documents)

    def documents(self, text: str) -> list[Any]:
        """The documents of an answer. Raises ValueError."""
        text = text.removeprefix("\ufeff")  # like browsers and readers of streams
        if text.startswith(("data:", "event:")):
            return [json.loads(data) for data in datas(text) if data != "[DONE]"]
        found = json.loads(text)
        return found if isinstance(found, list) else [found]

    def outcome_of(self, status: int, documents: list[Any]) -> Outcome:
        if "error" in documents[-1]:
            assert set(documents[-1]["error"]) >= {"code", "message", "status"}, documents[-1]
            assert status in (200, documents[-1]["error"]["code"])
            return Outcome("error")
        candidates = [one for document in documents for one in self.unwrapped(document).get("candidates", [])]
        parts = [part for one in candidates for part in one["content"]["parts"]]
        assert not any("functionCall" in part or "function_call" in part for part in parts), parts
        text = "".join(part.get("text", "") for part in parts)
        return ended(status, text, is_whole=sum("finishReason" in one for one in candidates) == 1)

    def unwrapped(self, document: Json) -> Json:
        return document

    # --- the upstream -----------------------------------------------------------------------------------------

    def answer(self, framing: str, what: str | Call) -> Answered:
        document = self.wrapped(self.document(what))
        if framing == "SSE":
            return Answered(b"data: " + document + b"\r\n\r\n", "text/event-stream")
        return Answered(b"[" + document + b"]" if framing == "array" else document, "application/json")

    def document(self, what: str | Call) -> bytes:
        part = b'{"text":%b}' % json.dumps(what).encode() if isinstance(what, str) else self._call(what)
        return (
            b'{"candidates":[{"content":{"role":"model","parts":[%b]},"finishReason":"STOP","index":0}],'
            b'"responseId":"r"}' % part
        )

    def _call(self, call: Call) -> bytes:
        made = b'{"name":"%b","args":%b}' % (call.name.encode(), call.args)
        return b'{%b:%b,"thoughtSignature":"c2ln"}' % (call.key or self.key, made)

    def wrapped(self, document: bytes) -> bytes:
        return document


class CodeAssist(Dialect):
    name = "Code Assist"
    paths: ClassVar[Mapping[str, str]] = {
        "JSON": "/v1internal:generateContent",
        "SSE": "/v1internal:streamGenerateContent?alt=sse",
        "array": "/v1internal:streamGenerateContent",
    }

    def speaks(self, path: str) -> bool:
        return path.startswith("/v1internal")

    def request(self, framing: str, words: str = "hi") -> Json:
        return {"model": MODEL, "project": "p", "request": super().request(framing, words)}

    def unwrapped(self, document: Json) -> Json:
        found: Json = document["response"]
        return found

    def wrapped(self, document: bytes) -> bytes:
        return b'{"response":%b}' % document


class OnePath(Dialect):
    """A format with one path: a field of the request decides whether the answer is a stream."""

    def speaks(self, path: str) -> bool:
        return path == self.paths["JSON"]

    def framing(self, path: str, body: bytes) -> str:
        return "SSE" if json.loads(body).get("stream") else "JSON"


class Completions(OnePath):
    name = "chat completions"
    key = b'"tool_calls"'
    keys: ClassVar[Mapping[str, bytes]] = {"escaped": rb'"tool\u005fcalls"'}
    paths: ClassVar[Mapping[str, str]] = dict.fromkeys(("JSON", "SSE"), "/v1beta/openai/chat/completions")

    def request(self, framing: str, words: str = "hi") -> Json:
        return {"model": MODEL, "messages": [{"role": "user", "content": words}], "stream": framing == "SSE"}

    def outcome_of(self, status: int, documents: list[Any]) -> Outcome:
        if "error" in documents[-1]:
            assert documents[-1]["error"]["message"], documents[-1]
            assert status in (200, documents[-1]["error"]["code"])
            return Outcome("error")
        choices = [one for document in documents for one in document["choices"]]
        messages = [one.get("message") or one.get("delta") or {} for one in choices]
        assert not any(one.get("tool_calls") for one in messages), messages
        text = "".join(one.get("content") or "" for one in messages)
        return ended(status, text, is_whole=sum(bool(one.get("finish_reason")) for one in choices) == 1)

    def answer(self, framing: str, what: str | Call) -> Answered:
        if isinstance(what, str):
            message, finish = b'{"role":"assistant","content":%b}' % json.dumps(what).encode(), b"stop"
        else:
            made = b'{"index":0,"id":"c1","type":"function","function":{"name":"%b","arguments":%b}}'
            call = made % (what.name.encode(), what.args if what.args != b"{}" else b'"{}"')
            message, finish = b'{"role":"assistant",%b:[%b]}' % (what.key or self.key, call), b"tool_calls"
        holder, kind = (b"delta", b".chunk") if framing == "SSE" else (b"message", b"")
        document = (
            b'{"id":"x","object":"chat.completion%b","created":1,"model":"m",'
            b'"choices":[{"index":0,"%b":%b,"finish_reason":"%b"}]}' % (kind, holder, message, finish)
        )
        if framing == "SSE":
            return Answered(b"data: " + document + b"\n\ndata: [DONE]\n\n", "text/event-stream")
        return Answered(document, "application/json")


class Interactions(OnePath):
    name = "Interactions"
    key = b'"function_call"'
    keys: ClassVar[Mapping[str, bytes]] = {"escaped": rb'"function\u005fcall"'}
    paths: ClassVar[Mapping[str, str]] = dict.fromkeys(("JSON", "SSE"), "/v1beta/interactions")

    def request(self, framing: str, words: str = "hi") -> Json:
        return {"model": MODEL, "input": words, "stream": framing == "SSE"}

    def outcome_of(self, status: int, documents: list[Any]) -> Outcome:
        last = documents[-1]
        if "error" in last:
            assert set(last["error"]) >= {"code", "message"}, last
            assert status != 200 or last.get("event_type") == "error", last
            return Outcome("error")
        if "event_type" in last:
            steps = [one["step"] for one in documents if one["event_type"] == "step.start"]
            texts = [one["delta"].get("text", "") for one in documents if one["event_type"] == "step.delta"]
            is_whole = last["event_type"] == "interaction.completed"
        else:
            steps = last["steps"]
            texts = [one["text"] for step in steps for one in step.get("content", [])]
            is_whole = last["status"] == "completed"
        assert not any(step["type"] == "function_call" for step in steps), steps
        return ended(status, "".join(texts), is_whole=is_whole)

    def answer(self, framing: str, what: str | Call) -> Answered:
        is_text = isinstance(what, str)
        status = b"completed" if is_text else b"requires_action"
        ended = b'"id":"v1_x","object":"interaction","model":"m","status":"%b"' % status
        if isinstance(what, str):
            content = b'{"type":"text","text":%b}' % json.dumps(what).encode()
            step = b'{"type":"model_output","content":[%b]}' % content
        else:
            made = b'{"type":%b,"id":"c1","name":"%b","arguments":%b}'
            step = made % (what.key or self.key, what.name.encode(), what.args)
        if framing == "JSON":
            return Answered(b'{%b,"steps":[%b]}' % (ended, step), "application/json")
        begun = b'{"event_type":"interaction.created","interaction":{"id":"v1_x","model":"m","status":"in_progress"}}'
        events = [begun]
        if isinstance(what, str):
            events.append(b'{"event_type":"step.start","index":0,"step":{"type":"model_output"}}')
            events.append(b'{"event_type":"step.delta","index":0,"delta":%b}' % content)
        else:
            events.append(b'{"event_type":"step.start","index":0,"step":%b}' % step)
        events.append(b'{"event_type":"step.stop","index":0}')
        events.append(b'{"event_type":"interaction.completed","interaction":{%b}}' % ended)
        body = b"".join(b"data: " + event + b"\n\n" for event in events)
        return Answered(body + b"data: [DONE]\n\n", "text/event-stream")


class GeminiDoor(Dialect):
    """The front door `/v1/gemini`, with answers and upstream requests in Gemini's format."""

    name = "/v1/gemini"
    paths: ClassVar[Mapping[str, str]] = dict.fromkeys(("JSON", "SSE"), "/v1/gemini")
    is_door = True

    def request(self, framing: str, words: str = "hi") -> Json:
        return {"model": MODEL, "input": words, "stream": framing == "SSE"}


class ResponsesDoor(GeminiDoor):
    """The front door `/v1/responses`, in OpenAI's format."""

    name = "/v1/responses"
    paths: ClassVar[Mapping[str, str]] = dict.fromkeys(("JSON", "SSE"), "/v1/responses")

    def outcome_of(self, status: int, documents: list[Any]) -> Outcome:
        last = documents[-1]
        if status != 200 or last.get("type") == "error":
            assert set(last.get("error", last)) >= {"message", "code", "param"}, last
            return Outcome("error")
        response = last.get("response", last)
        if response["status"] == "failed":
            assert response["error"]["message"], last
            return Outcome("error")
        items = response["output"]
        assert not any(one["type"] == "function_call" for one in items), items
        text = "".join(part["text"] for one in items for part in one.get("content", []))
        return ended(status, text, is_whole=response["status"] == "completed")


GEMINI, CODE_ASSIST, COMPLETIONS, INTERACTIONS = SURFACES = (Dialect(), CodeAssist(), Completions(), Interactions())
DOORS = (GeminiDoor(), ResponsesDoor())
DIALECTS = {dialect.name: dialect for dialect in (*SURFACES, *DOORS)}


def dialect_of(path: str) -> Dialect:
    """The format of an upstream request."""
    return next(dialect for dialect in (CODE_ASSIST, COMPLETIONS, INTERACTIONS, GEMINI) if dialect.speaks(path))


def datas(text: str) -> list[str]:
    """The data of a stream's events. Raises ValueError if the stream ends within an event."""
    *events, rest = text.replace("\r\n", "\n").split("\n\n")
    if rest.strip():
        raise ValueError("half an event")
    lines = [line for event in events for line in event.split("\n")]
    return [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
