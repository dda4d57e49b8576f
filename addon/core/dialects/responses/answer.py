"""Translates Gemini's answer to OpenAI's Response object and the events of its stream.

A `Translator` is fed the response documents of one answer (one for JSON, one for each event of a stream), from any
number of upstream requests. Only the last item of a response is open: further text of its kind extends it, anything
else closes it. So the result does not depend on how the answer was cut. `events_of` converts a finished Response object
to the events of a stream. Pure: ids and the time are given.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from addon.core.answer import FILLER, Candidate
from addon.core.arguments import NO_LIMITS, Assembly
from addon.core.dialects.responses.errors import message_of
from addon.core.dialects.responses.items import to_carry
from addon.core.dialects.responses.request import ResponsesRequest
from addon.core.framing.documents import Document, as_list, camel, encode, get, index_of, objects, parts_of


def search_of(grounding: Document, *, with_sources: bool) -> Document | None:
    """A groundingMetadata as the `action` of a web search call; None if nothing was searched."""
    queries = [query for query in as_list(get(grounding, "webSearchQueries")) if isinstance(query, str)]
    if not queries:
        return None
    action: Document = {"type": "search", "query": queries[0], "queries": queries}
    if with_sources:
        urls = dict.fromkeys(url for url, _ in filter(None, map(_source, objects(get(grounding, "groundingChunks")))))
        action["sources"] = [{"type": "url", "url": url} for url in urls]
    return action


def citations_of(grounding: Document, text: str) -> list[Document]:
    """The citations in a text, which may begin before the text that the metadata refers to."""
    sources = [_source(chunk) for chunk in objects(get(grounding, "groundingChunks"))]
    found = []
    for support in objects(get(grounding, "groundingSupports")):
        segment = get(support, "segment")
        if not isinstance(segment, dict) or (place := _place(segment, text)) is None:
            continue
        for index in as_list(get(support, "groundingChunkIndices")):
            source = sources[index] if isinstance(index, int) and 0 <= index < len(sources) else None
            if source is not None:
                url, title = source
                place_in_text = {"start_index": place[0], "end_index": place[1]}
                found.append({"type": "url_citation", **place_in_text, "url": url, "title": title})
    return found


def _source(chunk: Document) -> tuple[str, str] | None:
    """The URL and the title of a web source."""
    web = get(chunk, "web")
    url = get(web, "uri") if isinstance(web, dict) else None
    return (url, str(get(web, "title") or "")) if isinstance(url, str) and url else None


def _place(segment: Document, text: str) -> tuple[int, int] | None:
    """The position of a segment, in characters. Gemini counts bytes, from the beginning of its own text."""
    start, end, words = get(segment, "startIndex") or 0, get(segment, "endIndex"), get(segment, "text")
    raw = text.encode("utf-8", "surrogatepass")
    if isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= len(raw):
        given = raw[start:end].decode("utf-8", "replace")
        if not isinstance(words, str) or given == words:
            first = len(raw[:start].decode("utf-8", "replace"))
            return first, first + len(given)
    if isinstance(words, str) and words and (at := text.rfind(words)) >= 0:
        return at, at + len(words)
    return None


type Status = Literal["completed", "incomplete"]


class Items:
    """`items`: the response's items, the open one in its initial state. `emit` gets the type and the members of each
    event. `new_id` makes an id from a prefix such as `msg`. `of_thoughts`: further members of a complete item of
    thoughts."""

    def __init__(
        self, emit: Callable[[str, Document], None], new_id: Callable[[str], str], of_thoughts: Document | None = None
    ) -> None:
        self.of_thoughts = of_thoughts or {}
        self.items: list[Document] = []
        self._emit = emit
        self._new_id = new_id
        self._open: Literal["message", "reasoning"] | None = None
        self._texts: list[str] = []
        self._logprobs: list[Document] = []
        self._annotations: list[Document] = []

    def text(self, delta: str, logprobs: Sequence[Document] = ()) -> None:
        """Add text of the answer. `logprobs`: of its tokens, as the parts of a message have them."""
        if self._open != "message":
            self.close()
            self._begin("message", {"id": self._new_id("msg"), "role": "assistant", "content": []})
            self._emit_for_item("response.content_part.added", content_index=0, part=_output_text(""))
        self._texts.append(delta)
        self._logprobs += logprobs
        self._emit_for_item("response.output_text.delta", content_index=0, delta=delta, logprobs=_of_event(logprobs))

    def thought(self, delta: str) -> None:
        if self._open != "reasoning":
            self.close()
            self._begin("reasoning", {"id": self._new_id("rs"), "summary": []})
            self._emit_for_item("response.reasoning_summary_part.added", summary_index=0, part=_summary_text(""))
        self._texts.append(delta)
        self._emit_for_item("response.reasoning_summary_text.delta", summary_index=0, delta=delta)

    def call(self, call_id: str, name: str, arguments: str) -> None:
        self.close()
        item: Document = {"id": self._new_id("fc"), "type": "function_call", "call_id": call_id, "name": name}
        self._add(item | {"arguments": "", "status": "in_progress"})
        self._emit_for_item("response.function_call_arguments.delta", delta=arguments)
        self._emit_for_item("response.function_call_arguments.done", arguments=arguments)
        self._finish(item | {"arguments": arguments, "status": "completed"})

    @property
    def open_text(self) -> str | None:
        """The text of the open message, if any."""
        return "".join(self._texts) if self._open == "message" else None

    def annotate(self, annotations: Sequence[Document]) -> None:
        """Add annotations to the open message."""
        for annotation in annotations:
            self._emit_for_item(
                "response.output_text.annotation.added",
                content_index=0,
                annotation_index=len(self._annotations),
                annotation=annotation,
            )
            self._annotations.append(annotation)

    def search(self, action: Document) -> None:
        """Add a complete web search. `action`: its queries, and its sources if requested."""
        self.close()
        item: Document = {"id": self._new_id("ws"), "type": "web_search_call", "action": action}
        self._add(item | {"status": "in_progress"})
        for state in ("in_progress", "searching", "completed"):
            self._emit_for_item(f"response.web_search_call.{state}")
        self._finish(item | {"status": "completed"})

    def carried(self, sealed: str) -> None:
        """Add a reasoning item without text, for the client to carry."""
        self.close()
        item = {"type": "reasoning", "id": self._new_id("rs"), "summary": [], "encrypted_content": sealed}
        self._add(item | {"status": "in_progress"})
        self._finish(item | {"status": "completed"})

    def close(self, status: Status = "completed") -> None:
        """End the open item, if any."""
        kind, text, logprobs = self._open, "".join(self._texts), self._logprobs
        annotations = self._annotations
        self._open, self._texts, self._logprobs, self._annotations = None, [], [], []
        if kind == "message":
            part = _output_text(text, logprobs, annotations)
            self._emit_for_item("response.output_text.done", content_index=0, text=text, logprobs=_of_event(logprobs))
            self._emit_for_item("response.content_part.done", content_index=0, part=part)
            self._finish(self.items[-1] | {"content": [part], "status": status})
        elif kind == "reasoning":
            summary = _summary_text(text)
            self._emit_for_item("response.reasoning_summary_text.done", summary_index=0, text=text)
            self._emit_for_item("response.reasoning_summary_part.done", summary_index=0, part=summary)
            self._finish(self.items[-1] | self.of_thoughts | {"summary": [summary], "status": status})

    def _begin(self, kind: Literal["message", "reasoning"], item: Document) -> None:
        self._open = kind
        self._add({"type": kind, **item, "status": "in_progress"})

    def _add(self, item: Document) -> None:
        self.items.append(item)
        self._emit("response.output_item.added", {"output_index": len(self.items) - 1, "item": item})

    def _finish(self, item: Document) -> None:
        self.items[-1] = item
        self._emit("response.output_item.done", {"output_index": len(self.items) - 1, "item": item})

    def _emit_for_item(self, kind: str, **members: object) -> None:
        """An event about the last item."""
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        self._emit(kind, place | members)


def _output_text(text: str, logprobs: Sequence[Document] = (), annotations: Sequence[Document] = ()) -> Document:
    return {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": list(logprobs)}


def _of_event(logprobs: Sequence[Document]) -> list[Document]:
    """Without the bytes of tokens, which events do not have."""
    return [
        {**_without_bytes(one), "top_logprobs": [_without_bytes(other) for other in one["top_logprobs"]]}
        for one in logprobs
    ]


def _without_bytes(token: Document) -> Document:
    return {key: value for key, value in token.items() if key != "bytes"}


def _summary_text(text: str) -> Document:
    return {"type": "summary_text", "text": text}


type Event = Document

_FILTERED = frozenset(
    "SAFETY RECITATION LANGUAGE BLOCKLIST PROHIBITED_CONTENT SPII MODEL_ARMOR IMAGE_SAFETY IMAGE_PROHIBITED_CONTENT "
    "IMAGE_RECITATION".split()
)
_ENDED = frozenset(("STOP", "FINISH_REASON_UNSPECIFIED"))
_UNFILTERED = ("STOP", "MAX_TOKENS")
_ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
_TIERS = {"standard": "default", "flex": "flex", "priority": "priority"}
ENDS = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
}


def sse(event: Event) -> bytes:
    """An event as OpenAI frames it in a stream."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(event))


class Translator:
    """`status`: the response's. `calls`: new call id → the functionCall Part as the model sent it. Call `start`, then
    `feed` for each document, then `end` or `fail`; each returns the resulting events."""

    def __init__(
        self,
        request: ResponsesRequest,
        response_id: str,
        *,
        new_id: Callable[[str], str],
        now: Callable[[], float],
        tools: list[Document] | None = None,
        one_by_one: bool = False,
        seal: Callable[[str], str] | None = None,
    ) -> None:
        """`new_id`: makes an id from a prefix (`msg`, `rs`, `fc`, `call`), followed by an underscore. `now`: seconds
        since the epoch. `tools`: the tools to show if the conversation's apply, not the request's. `one_by_one`: show
        only the first of several calls; the others get ids and are shown later. `seal`: seals the content that the
        client carries, if it requested that."""
        self.status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
        self.calls: dict[str, Document] = {}
        self._echo = (
            request.echo | {"parallel_tool_calls": not one_by_one} | ({} if tools is None else {"tools": tools})
        )
        self._one_by_one = one_by_one
        self._shows_thoughts = request.shows_thoughts
        self._response_id = response_id
        self._new_id = new_id
        self._now = now
        self._created_at = int(now())
        self._completed_at: int | None = None
        self._error: Document | None = None
        self._reason: str | None = None
        self._usage: Document = {}
        self._candidate = Candidate(0, "")
        self._has_parts = False
        self._partial: tuple[Document, Assembly] | None = None  # a call that arrives in pieces, and its args so far
        self._finish: str | None = None
        self._finish_message: str | None = None
        self._blocked: str | None = None
        self._shows_sources = request.shows_sources
        self._grounding: Document | None = None
        self._logprobs: list[Document] = []  # of tokens whose text is still to come
        self._unshown: set[str] = set()
        self._sequence = 0
        self._events: list[Event] = []
        self._seal = seal if request.carries_signatures else None
        # Clients drop a reasoning item without sealed content, with a warning.
        sealed = {} if self._seal is None else {"encrypted_content": self._seal("{}")}
        self._items = Items(self._emit, new_id, sealed)

    @property
    def content(self) -> Document | None:
        """The model's Content for the history, with signatures, without thoughts. None if it is empty. If all parts are
        thoughts, a filler replaces them, because the turn may have calls that the caller does not see."""
        parts = self._candidate.true_parts or ([FILLER] if self._has_parts and self._finish in _UNFILTERED else [])
        return {"role": "model", "parts": parts} if parts else None

    @property
    def is_filtered(self) -> bool:
        """Whether the answer was ended because of its or the prompt's content, so that a retry would end the same
        way."""
        return self._reason == "content_filter"

    def start(self) -> list[Event]:
        for kind in ("response.created", "response.in_progress"):
            self._emit(kind, {"response": self.document()})
        return self._take_events()

    def feed(self, document: Document) -> list[Event]:
        """Process a response document, or the error document that ends a stream. Ignored after the end."""
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
            if not index_of(candidate):
                self._take(candidate)
        return self._take_events()

    def repeat_calls(self, calls: Mapping[str, Document]) -> list[Event]:
        """Give out calls again, under their ids, that still wait for outputs. The model is not asked, so `end` may
        follow immediately. `calls`: call id → the functionCall Part."""
        for call_id, part in calls.items():
            self._give_out(call_id, part)
        self._finish = "STOP"
        return self._take_events()

    def end(self) -> list[Event]:
        """Process the clean end of the answer."""
        if self.status != "in_progress":
            return []
        self._add_assembled()
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
        """End an answer that broke off or never came. `status`: an HTTP status. `source`: Gemini's error, or a
        message."""
        if self.status != "in_progress":
            return []
        self._error = {"code": _ERROR_CODES.get(status, "server_error"), "message": message_of(source)}
        self.status = "failed"
        return self._ended()

    def document(self) -> Document:
        return {
            "id": self._response_id,
            "object": "response",
            "created_at": self._created_at,
            "completed_at": self._completed_at,
            "status": self.status,
            "error": self._error,
            "incomplete_details": None if self._reason is None else {"reason": self._reason},
            **self._echo,
            **({"service_tier": _TIERS[tier]} if (tier := _tier(self._usage)) else {}),
            "output": list(self._items.items),
            "usage": usage_of(self._usage) if self._usage and self.status != "in_progress" else None,
        }

    def _take(self, candidate: Document) -> None:
        content = candidate.get("content")
        if isinstance(found := get(candidate, "logprobsResult"), dict):
            self._logprobs += logprobs_of(found)
        if isinstance(found := get(candidate, "groundingMetadata"), dict):
            self._grounding = found
        for part in parts_of(content) if isinstance(content, dict) else ():
            if isinstance(call := get(part, "functionCall"), dict):
                self._take_call(part, call)
                continue
            self._candidate.add_true(part)
            self._has_parts = True
            if isinstance(text := part.get("text"), str):
                self._take_text(text, thought=bool(part.get("thought")))
            else:
                self._unshown |= {camel(key) for key in part} - {"thought", "thoughtSignature"}
        if (finish := get(candidate, "finishReason")) is not None:
            self._finish = str(finish)
            self._finish_message = get(candidate, "finishMessage") or self._finish_message

    def _take_text(self, text: str, *, thought: bool) -> None:
        if text and not thought:
            logprobs, self._logprobs = self._logprobs, []
            self._items.text(text, logprobs)
        elif text and self._shows_thoughts:
            self._items.thought(text)

    def _take_call(self, part: Document, call: Document) -> None:
        """Record a call, or a piece of a call: Vertex can stream arguments."""
        pieces, goes_on = as_list(get(call, "partialArgs")), bool(get(call, "willContinue"))
        if call.get("name"):
            self._add_assembled()  # another call begins, so this one is complete
        if self._partial is None and not pieces and not goes_on:
            self._add_call(part)
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
            self._add_assembled()

    def _add_assembled(self) -> None:
        if self._partial is not None:
            (made, args), self._partial = self._partial, None
            self._add_call({**made, "functionCall": {**made["functionCall"], "args": args.done()}})

    def _add_call(self, part: Document) -> None:
        self._candidate.add_true(part)
        self._give_out(self._new_id("call"), part)

    def _give_out(self, call_id: str, part: Document) -> None:
        call = get(part, "functionCall")
        if not (self._one_by_one and self.calls):
            self._items.call(call_id, str(call.get("name") or ""), encode(call.get("args") or {}).decode())
        self.calls[call_id] = part

    def _failure(self, reason: str) -> str | None:
        """Why an ended answer counts as failed; None if it does not."""
        if reason and reason not in _ENDED:
            more = f": {self._finish_message}" if self._finish_message else ""
            return f"Gemini ended its answer with {reason}{more}"
        if not self._items.items and self._unshown:
            return f"Gemini answered only with {', '.join(sorted(self._unshown))}, which a response cannot show"
        if not reason and self.content is None:
            return "Gemini's answer was empty, without a reason"
        return None

    def _ended(self) -> list[Event]:
        if self._grounding is not None and (text := self._items.open_text) is not None:
            self._items.annotate(citations_of(self._grounding, text))
        self._items.close("completed" if self.status == "completed" else "incomplete")
        if self._grounding is not None and (
            (action := search_of(self._grounding, with_sources=self._shows_sources)) is not None
        ):
            self._items.search(action)
        if self._seal is not None and self.status != "failed":
            carried = to_carry(self._candidate.true_parts, self.calls)
            if carried is not None:
                self._items.carried(self._seal(carried))
        self._completed_at = int(self._now()) if self.status == "completed" else None
        self._emit(ENDS[self.status], {"response": self.document()})
        return self._take_events()

    def _emit(self, kind: str, members: Document) -> None:
        self._events.append({"type": kind, "sequence_number": self._sequence, **members})
        self._sequence += 1

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def logprobs_of(result: Document) -> list[Document]:
    """Gemini's logprobsResult as the `logprobs` of an output text."""
    tops = as_list(get(result, "topCandidates"))
    found = []
    for at, chosen in enumerate(objects(get(result, "chosenCandidates"))):
        top = tops[at] if at < len(tops) and isinstance(tops[at], dict) else {}
        others = [_logprob(one) for one in objects(get(top, "candidates"))]
        found.append(_logprob(chosen) | {"top_logprobs": others})
    return found


def _logprob(candidate: Document) -> Document:
    token, value = str(candidate.get("token") or ""), get(candidate, "logProbability")
    number = value if isinstance(value, int | float) else 0.0
    return {"token": token, "bytes": list(token.encode("utf-8", "surrogatepass")), "logprob": number}


def _tier(usage: Document) -> str:
    """The tier that Gemini reports, in lower case; "" if OpenAI has no such tier, or none is reported."""
    tier = str(get(usage, "serviceTier") or "").lower()
    return tier if tier in _TIERS else ""


def usage_of(usage: Document) -> Document:
    """OpenAI's usage. Gemini counts the tokens of thoughts separately; OpenAI's output tokens include them."""
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


_UNKNOWN_YET = ("completed_at", "error", "incomplete_details", "usage")
"""Members that a Response object does not have before its end."""


def events_of(response: Document) -> list[Event]:
    """The events as from a `Translator`, with each item in one piece."""
    events: list[Event] = []

    def emit(kind: str, members: Document) -> None:
        events.append({"type": kind, "sequence_number": len(events), **members})

    initial = response | dict.fromkeys(_UNKNOWN_YET) | {"status": "in_progress", "output": []}
    for kind in ("response.created", "response.in_progress"):
        emit(kind, {"response": initial})
    ids = (item["id"] for item in response["output"])
    items = Items(emit, lambda _: next(ids))
    for item in response["output"]:
        match item["type"]:
            case "message":
                part = item["content"][0]
                items.text(part["text"], part["logprobs"])
                items.annotate(part["annotations"])
            case "web_search_call":
                items.search(item["action"])
            case "reasoning" if not item["summary"]:
                items.carried(item["encrypted_content"])
            case "reasoning":
                items.of_thoughts = {key: item[key] for key in ("encrypted_content",) if key in item}
                items.thought(item["summary"][0]["text"])
            case _:
                items.call(item["call_id"], item["name"], item["arguments"])
        items.close(item["status"])
    emit(ENDS[response["status"]], {"response": response})
    return events
