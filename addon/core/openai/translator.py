"""Gemini's answer → a Response object of OpenAI's, and the events of its stream.

A `Translator` is fed the response documents of one answer, one for JSON or one an event of a stream, however many
upstream requests they come from. What it makes of them does not depend on how they were cut. Pure: ids and the time
come from outside.
"""

from collections.abc import Callable, Mapping
from typing import Literal

from addon.core.answer import Candidate
from addon.core.arguments import NO_LIMITS, Assembly
from addon.core.documents import Document, as_list, camel, encode, get, objects, parts_of
from addon.core.openai.errors import message_of
from addon.core.openai.invalid import Object
from addon.core.openai.output import Items
from addon.core.openai.request import ResponsesRequest

type Event = Object

_FILTERED = frozenset(
    "SAFETY RECITATION LANGUAGE BLOCKLIST PROHIBITED_CONTENT SPII MODEL_ARMOR IMAGE_SAFETY IMAGE_PROHIBITED_CONTENT "
    "IMAGE_RECITATION".split()
)
_ENDED = frozenset(("STOP", "FINISH_REASON_UNSPECIFIED"))
_ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
ENDS = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
}


def sse(event: Event) -> bytes:
    """An event as OpenAI frames it in a stream."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(event))


class Translator:
    """`status` is the response's. `calls`: for each call id that was made, the functionCall Part as the model said
    it. Fed through `start`, `feed` for each document, and `end` or `fail`; each gives the events it leads to."""

    def __init__(
        self,
        wanted: ResponsesRequest,
        response_id: str,
        *,
        new_id: Callable[[str], str],
        now: Callable[[], float],
        tools: list[Object] | None = None,
        one_by_one: bool = False,
    ) -> None:
        """`new_id`: makes an id that begins with what it is given (`msg`, `rs`, `fc`, `call`) and an underscore.
        `now`: seconds since the epoch. `tools`: what to show where the conversation's tools hold, not the request's.
        `one_by_one`: of several calls only the first is shown; the others get their ids, to be shown later."""
        self.status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
        self.calls: dict[str, Document] = {}
        self._echo = wanted.echo | {"parallel_tool_calls": not one_by_one} | ({} if tools is None else {"tools": tools})
        self._one_by_one = one_by_one
        self._shows_thoughts = wanted.shows_thoughts
        self._response_id = response_id
        self._new_id = new_id
        self._now = now
        self._created_at = int(now())
        self._completed_at: int | None = None
        self._error: Object | None = None
        self._reason: str | None = None
        self._usage: Document = {}
        self._candidate = Candidate(0, "")
        self._partial: tuple[Document, Assembly] | None = None  # a call that comes in pieces, and its args so far
        self._finish: str | None = None
        self._finish_message: str | None = None
        self._blocked: str | None = None
        self._unshown: set[str] = set()
        self._sequence = 0
        self._events: list[Event] = []
        self._items = Items(self._emit, new_id)

    @property
    def content(self) -> Document | None:
        """The model's Content, for the history: signatures and all, without thoughts. None where it said nothing."""
        return {"role": "model", "parts": parts} if (parts := self._candidate.true_parts) else None

    def start(self) -> list[Event]:
        for kind in ("response.created", "response.in_progress"):
            self._emit(kind, {"response": self.document()})
        return self._take_events()

    def feed(self, document: Document) -> list[Event]:
        """A response document, or the error document that ends a stream. After an end nothing counts any more."""
        if self.status != "in_progress":
            return []
        if (error := document.get("error")) is not None:
            code = error.get("code") if isinstance(error, dict) else None
            return self.fail(code if isinstance(code, int) else 500, document)
        if isinstance(usage := get(document, "usageMetadata"), dict):
            self._usage = usage
        if isinstance(feedback := get(document, "promptFeedback"), dict):
            self._blocked = get(feedback, "blockReason") or self._blocked
        for candidate in objects(document.get("candidates")):
            if not candidate.get("index"):
                self._take(candidate)
        return self._take_events()

    def repeat_calls(self, calls: Mapping[str, Document]) -> list[Event]:
        """Calls that were given out before and still wait for outputs: given out again under their ids. The model says
        nothing, so `end` may follow at once. `calls`: call id → the functionCall Part."""
        for call_id, part in calls.items():
            self._give(call_id, part)
        self._finish = "STOP"
        return self._take_events()

    def end(self) -> list[Event]:
        """The clean end of the answer."""
        if self.status != "in_progress":
            return []
        self._assembled()
        reason = self._finish or ("" if self._blocked is None else "SAFETY")
        if reason in _FILTERED:
            self.status, self._reason = "incomplete", "content_filter"
        elif reason == "MAX_TOKENS":
            self.status, self._reason = "incomplete", "max_output_tokens"
        elif failure := self._failure(reason):
            self.status, self._error = "failed", {"code": "server_error", "message": failure}
        else:
            self.status = "completed"
        return self._ended()

    def fail(self, status: int, source: Document | str) -> list[Event]:
        """The answer was broken off, or never came. `status`: an HTTP status; `source`: Gemini's error, or words."""
        if self.status != "in_progress":
            return []
        self._error = {"code": _ERROR_CODES.get(status, "server_error"), "message": message_of(source)}
        self.status = "failed"
        return self._ended()

    def document(self) -> Object:
        """The Response object as it is now."""
        return {
            "id": self._response_id,
            "object": "response",
            "created_at": self._created_at,
            "completed_at": self._completed_at,
            "status": self.status,
            "error": self._error,
            "incomplete_details": None if self._reason is None else {"reason": self._reason},
            **self._echo,
            "output": list(self._items.items),
            "usage": _usage(self._usage) if self._usage and self.status != "in_progress" else None,
        }

    def _take(self, candidate: Document) -> None:
        content = candidate.get("content")
        for part in parts_of(content) if isinstance(content, dict) else ():
            if isinstance(call := get(part, "functionCall"), dict):
                self._take_call(part, call)
                continue
            self._candidate.add_true(part)
            if isinstance(text := part.get("text"), str):
                self._take_text(text, thought=bool(part.get("thought")))
            else:
                self._unshown |= {camel(key) for key in part} - {"thought", "thoughtSignature"}
        if (finish := get(candidate, "finishReason")) is not None:
            self._finish = str(finish)
            self._finish_message = get(candidate, "finishMessage") or self._finish_message

    def _take_text(self, text: str, *, thought: bool) -> None:
        if text and not thought:
            self._items.text(text)
        elif text and self._shows_thoughts:
            self._items.thought(text)

    def _take_call(self, part: Document, call: Document) -> None:
        """A call, or a piece of one: Vertex can stream arguments."""
        pieces, goes_on = as_list(get(call, "partialArgs")), bool(get(call, "willContinue"))
        if call.get("name"):
            self._assembled()  # another call begins: the one before it has come to its end
        if self._partial is None and not pieces and not goes_on:
            self._called(part)
            return
        if self._partial is None:
            head = {key: value for key, value in call.items() if camel(key) not in ("partialArgs", "willContinue")}
            self._partial = {**part, "functionCall": head}, Assembly(NO_LIMITS.args)
        made, args = self._partial
        for key, value in part.items():
            made.setdefault(key, value)  # the signature may come with a later piece
        for piece in objects(pieces):
            args.put(piece)
        if isinstance(given := call.get("args"), dict):
            args.update(given)
        if not goes_on:
            self._assembled()

    def _assembled(self) -> None:
        if self._partial is not None:
            (made, args), self._partial = self._partial, None
            self._called({**made, "functionCall": {**made["functionCall"], "args": args.done()}})

    def _called(self, part: Document) -> None:
        self._candidate.add_true(part)
        self._give(self._new_id("call"), part)

    def _give(self, call_id: str, part: Document) -> None:
        call = get(part, "functionCall")
        if not (self._one_by_one and self.calls):
            self._items.call(call_id, str(call.get("name") or ""), encode(call.get("args") or {}).decode())
        self.calls[call_id] = part

    def _failure(self, reason: str) -> str | None:
        """Why an answer that has ended is none."""
        if reason and reason not in _ENDED:
            more = f": {self._finish_message}" if self._finish_message else ""
            return f"Gemini ended its answer with {reason}{more}"
        if not self._items.items and self._unshown:
            return f"Gemini answered with {', '.join(sorted(self._unshown))} alone, which a response cannot show here"
        if not reason and self.content is None:
            return "Gemini's answer was empty, without a word about why"
        return None

    def _ended(self) -> list[Event]:
        self._items.close("completed" if self.status == "completed" else "incomplete")
        self._completed_at = int(self._now()) if self.status == "completed" else None
        self._emit(ENDS[self.status], {"response": self.document()})
        return self._take_events()

    def _emit(self, kind: str, members: Object) -> None:
        self._events.append({"type": kind, "sequence_number": self._sequence, **members})
        self._sequence += 1

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def _usage(usage: Document) -> Object:
    """Gemini tells the answer's tokens and those of thinking apart; OpenAI's output tokens hold both."""
    thoughts = _count(usage, "thoughtsTokenCount")
    received = _count(usage, "promptTokenCount") + _count(usage, "toolUsePromptTokenCount")
    given = _count(usage, "candidatesTokenCount") + thoughts
    return {
        "input_tokens": received,
        "input_tokens_details": {
            "cached_tokens": _count(usage, "cachedContentTokenCount"),
            "cache_write_tokens": 0,
        },
        "output_tokens": given,
        "output_tokens_details": {"reasoning_tokens": thoughts},
        "total_tokens": _count(usage, "totalTokenCount") or received + given,
    }


def _count(usage: Document, name: str) -> int:
    value = get(usage, name)
    return value if isinstance(value, int) else 0
