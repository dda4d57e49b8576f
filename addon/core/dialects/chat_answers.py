"""Chat completions, answers: converts OpenAI's choices to Gemini's candidates and back.

A `Completions` is fed the documents of one answer: one for JSON, one for each event of a stream. `read` returns the
Gemini response, `write` the chat completions document for a visible response. Gemini sends each call whole in one
event, without an index or always with the same one; other services send its arguments in pieces. A call is complete if
its arguments are, if another call begins, or if the answer ends. Clients assemble the calls of a stream by index, so
each of the client's calls gets a separate index."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from addon.core.dialects.chat_requests import call_part, signature_member, signature_of, tool_call
from addon.core.framing.documents import Document, Malformed, content_of, decode, get, index_of, objects, parts_of
from addon.core.framing.streams import ArrayDecoder

_REASONS = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "function_call": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
}
_FINISHES = {"STOP": "stop", "MAX_TOKENS": "length", "SAFETY": "content_filter"}
_COUNTS = {
    "promptTokenCount": ("prompt_tokens",),
    "candidatesTokenCount": ("completion_tokens",),
    "totalTokenCount": ("total_tokens",),
    "thoughtsTokenCount": ("completion_tokens_details", "reasoning_tokens"),
    "cachedContentTokenCount": ("prompt_tokens_details", "cached_tokens"),
}
_ALWAYS = ("prompt_tokens", "completion_tokens", "total_tokens")


class _OpenCall:
    """A call whose arguments may be incomplete. `is_whole`: the arguments' last bracket has arrived."""

    def __init__(self, entry: Document) -> None:
        self.entry = entry
        self.announced = False  # whether its beginning was passed on as a part
        self.place: int | None = None  # its index among the client's calls
        self.is_whole = False
        self._texts: list[str] = []
        self._brackets = ArrayDecoder()
        self._take(entry)

    def add(self, entry: Document) -> None:
        self.entry = {**entry, **self.entry}  # keeps members that arrive late
        self._take(entry)

    def is_continued(self, entry: Document) -> bool:
        others = (("id", entry.get("id")), ("index", entry.get("index")))
        return not any(value not in (None, "", self.entry.get(key)) for key, value in others)

    def closed(self) -> Document:
        function = _function(self.entry)
        whole = function.get("arguments") if not self._texts else "".join(self._texts)
        return {**self.entry, "function": {**function, "arguments": "" if whole is None else whole}}

    def _take(self, entry: Document) -> None:
        more = _function(entry).get("arguments")
        if isinstance(more, dict):
            self.is_whole = True
        if not isinstance(more, str):
            return
        self._texts.append(more)
        ended = [one for one in self._brackets.feed(more.encode("utf-8", "surrogatepass")) if one.data is not None]
        if ended and not ended[0].prefix.strip():
            with contextlib.suppress(Malformed):
                self.is_whole = isinstance(decode("".join(self._texts).encode("utf-8", "surrogatepass")), dict)


class _Choice:
    def __init__(self) -> None:
        self.open: _OpenCall | None = None
        self.visible_calls = 0  # how many calls the client got
        self.has_role = False  # whether the client got the message's role


class _ReadPart(NamedTuple):
    """A part that was read, with its call and the entry that it was made from, if any."""

    choice: _Choice
    call: _OpenCall
    part: Document
    entry: Document | None

    def client_entry(self, *, numbered: bool) -> Document | None:
        """The entry for the client. `numbered`: with the call's index."""
        if self.call.place is None:
            self.call.place = self.choice.visible_calls
            self.choice.visible_calls += 1
        if self.entry is None or not numbered or self.entry.get("index") == self.call.place:
            return self.entry
        return {**self.entry, "index": self.call.place}


class Completions:
    """One answer for the client, from one or several answers of a loop: `begin_round` starts the next one."""

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}
        self._document: Document = {}  # the last document read
        self._read_parts: list[_ReadPart] = []  # the call parts in it
        self._head: Document = {}

    def begin_round(self) -> None:
        for choice in self._choices.values():
            choice.open = None

    def forward(self) -> Document | None:
        """Forward the last document read. Returns it with new indexes for its calls, and without pieces that belong to
        no call; None if it stays unchanged."""
        given = {id(one.entry): one.client_entry(numbered=True) for one in self._read_parts}
        for choice in objects(self._document.get("choices")):
            self._choices[index_of(choice)].has_role = True
        choices = [_numbered(choice, given) for choice in objects(self._document.get("choices"))]
        document, self._document, self._read_parts = self._document, {}, []
        return {**document, "choices": choices} if choices != document.get("choices", []) else None

    # --- OpenAI → Gemini ----------------------------------------------------------------------------------------

    def read(self, document: object) -> Document | None:
        """The document as a Gemini response; None if it is no response, for example an error."""
        self._document, self._read_parts = {}, []
        if not isinstance(document, dict) or not isinstance(document.get("choices"), list):
            return None
        self._document = document
        if not self._head:
            self._head = {k: v for k, v in document.items() if k not in ("choices", "usage")}
        response: Document = {"candidates": [self._candidate(one) for one in objects(document["choices"])]}
        for name, value in (("responseId", document.get("id")), ("modelVersion", document.get("model"))):
            if isinstance(value, str):
                response[name] = value
        if isinstance(usage := document.get("usage"), dict):
            response["usageMetadata"] = _gemini_usage(usage)
        return response

    def _candidate(self, choice: Document) -> Document:
        index = index_of(choice)
        state = self._choices.setdefault(index, _Choice())
        whole = isinstance(choice.get("message"), dict)
        message = choice["message"] if whole else choice.get("delta")
        message = message if isinstance(message, dict) else {}
        finish = choice.get("finish_reason")
        parts: list[Document] = []
        if isinstance(text := message.get("content"), str) and text:
            parts.append({"text": text})
        if (signature := signature_of(message)) is not None:
            parts = [*parts[:-1], {**(parts[-1] if parts else {"text": ""}), "thoughtSignature": signature}]
        for entry in objects(message.get("tool_calls")):
            parts += self._take(state, entry)
        if whole or finish is not None:
            parts += self._close(state, None)
        candidate: Document = {"content": {"role": "model", "parts": parts}, "index": index}
        if isinstance(finish, str):
            candidate["finishReason"] = _reason(finish)
        return candidate

    def _take(self, state: _Choice, entry: Document) -> list[Document]:
        """The parts for a call, or for a piece of a call."""
        parts: list[Document] = []
        if state.open is None or not state.open.is_continued(entry):
            name = _function(entry).get("name")
            if not isinstance(name, str) or not name:
                return []
            parts += self._close(state, None)
            state.open = _OpenCall(entry)
        else:
            state.open.add(entry)
        call = state.open
        if call.is_whole:
            return parts + self._close(state, entry)
        head: Document = {"willContinue": True}
        if not call.announced:
            head |= {k: v for k, v in (("id", call.entry.get("id")), ("name", _function(entry)["name"])) if v}
        call.announced = True
        return [*parts, self._part(state, call, {"functionCall": head}, entry)]

    def _close(self, state: _Choice, entry: Document | None) -> list[Document]:
        """Complete the open call. `entry`: the piece that completed it, if any."""
        call, state.open = state.open, None
        if call is None:
            return []
        part = call_part(call.closed())
        if call.announced:
            part = {**part, "functionCall": {"args": part["functionCall"]["args"]}}
        return [self._part(state, call, part, entry)]

    def _part(self, state: _Choice, call: _OpenCall, part: Document, entry: Document | None) -> Document:
        self._read_parts.append(_ReadPart(state, call, part, entry))
        return part

    # --- Gemini → OpenAI ----------------------------------------------------------------------------------------

    def write(self, visible: Document, raw: Document | None, kind: str) -> Document:
        """The document for a visible response. `kind`: its `object`, chat.completion or chat.completion.chunk. `raw`:
        the last document read; None for a response made by the proxy."""
        head = {k: v for k, v in (raw or self._head).items() if k not in ("choices", "usage")}
        made: Document = {"id": "", "object": kind, "created": 0, "model": ""} | head | {"object": kind}
        made["created"] = self._head.get("created", made["created"])
        made["id"] = visible.get("responseId") or made["id"]
        made["model"] = made["model"] or visible.get("modelVersion", "")
        choices = {index_of(one): one for one in objects((raw or {}).get("choices"))}
        candidates = list(objects(visible.get("candidates")))
        if raw is not None and not choices and not any("finishReason" in one for one in candidates):
            candidates = []  # only usage
        field = "message" if kind == "chat.completion" else "delta"
        made["choices"] = [self._choice(one, choices.get(index_of(one), {}), field) for one in candidates]
        usage = visible.get("usageMetadata")
        if isinstance(usage, dict) and usage:
            given = (raw or {}).get("usage")
            given = given if isinstance(given, dict) else {}
            made["usage"] = given if _gemini_usage(given) == usage else _openai_usage(usage, given)
        return made

    def _choice(self, candidate: Document, raw: Document, field: str) -> Document:
        index = index_of(candidate)
        state = self._choices.setdefault(index, _Choice())
        before = raw.get(field)
        before = before if isinstance(before, dict) else {}
        message = {k: v for k, v in before.items() if k not in ("content", "tool_calls", "extra_content")}
        if field == "message" or not (raw or state.has_role):
            message = {"role": "assistant"} | message
        elif state.has_role:
            message.pop("role", None)  # clients concatenate repeated roles, as they do with text
        state.has_role = True
        parts = parts_of(content_of(candidate))
        text = "".join(str(part.get("text", "")) for part in parts if not part.get("thought"))
        calls = [part for part in parts if get(part, "functionCall") is not None]
        if text or (field == "message" and not calls):
            message["content"] = text
        if calls and (entries := self._calls(calls, numbered=field == "delta")):
            message["tool_calls"] = entries
        signature = [get(part, "thoughtSignature") for part in parts if get(part, "functionCall") is None]
        if last := [one for one in signature if one is not None]:
            message |= (
                {"extra_content": before["extra_content"]} if "extra_content" in before else signature_member(last[-1])
            )
        choice: Document = {"index": index, **raw, field: message}
        choice["finish_reason"] = _finish(candidate, raw.get("finish_reason"), state.visible_calls)
        return choice

    def _calls(self, parts: Sequence[Document], *, numbered: bool) -> list[Document]:
        """The entries of the client's calls, as the service sent them."""
        read = {id(one.part["functionCall"]): one for one in self._read_parts}
        entries: list[Document] = []
        for part in parts:
            one = read.get(id(part["functionCall"]))
            entry = tool_call(part) if one is None else one.client_entry(numbered=numbered)
            if entry is not None:
                is_signed_here = one is not None and one.part is not part
                entries.append(entry | signature_member(part["thoughtSignature"]) if is_signed_here else entry)
        return entries


def _numbered(choice: Document, given: Mapping[int, Document | None]) -> Document:
    """A choice of a stream with the client's entry for each of its calls."""
    delta = choice.get("delta")
    if not isinstance(delta, dict) or not isinstance(delta.get("tool_calls"), list):
        return choice
    entries = [one for entry in delta["tool_calls"] if (one := given.get(id(entry))) is not None]
    others = {key: value for key, value in delta.items() if key != "tool_calls"}
    return {**choice, "delta": {**others, "tool_calls": entries} if entries else others}


def _function(entry: Document) -> Document:
    function = entry.get("function")
    return function if isinstance(function, dict) else {}


def _reason(finish: str) -> str:
    """A finish_reason as Gemini's. A reason that OpenAI does not define is Gemini's own, possibly with a prefix."""
    return _REASONS.get(finish) or finish.rpartition(":")[2].strip().upper()


def _finish(candidate: Document, raw: Any, visible_calls: int) -> Any:
    reason = candidate.get("finishReason")
    if reason is None:
        return None
    if (
        isinstance(raw, str)
        and _reason(raw) == reason
        and (visible_calls or raw not in ("tool_calls", "function_call"))
    ):
        return raw
    return "tool_calls" if visible_calls and reason == "STOP" else _FINISHES.get(str(reason), reason)


def _gemini_usage(usage: Document) -> Document:
    """`usage` as Gemini's usageMetadata."""
    counts: Document = {}
    for name, path in _COUNTS.items():
        value: Any = usage
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, int):
            counts[name] = value
    return counts


def _openai_usage(counts: Document, given: Document) -> Document:
    """usageMetadata as `usage`. Other members of the given `usage` stay."""
    usage: Document = {**dict.fromkeys(_ALWAYS, 0), **given}
    for name, path in _COUNTS.items():
        if name not in counts:
            continue
        if len(path) == 1:
            usage[path[0]] = counts[name]
        else:
            details = usage.get(path[0])
            usage[path[0]] = {**(details if isinstance(details, dict) else {}), path[1]: counts[name]}
    return usage
