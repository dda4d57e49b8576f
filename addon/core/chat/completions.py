"""Chat completions, answers: OpenAI's choices as Gemini's candidates, and the way back.

A `Completions` is fed the documents of one answer, one for JSON or one an event of a stream, and says what each is as
a Gemini response; `written` makes a document of chat completions of a response as it is to be seen, out of the one it
came in. Gemini gives a call whole in one event, without an index or always under the same; others send its arguments
piece by piece. A call is complete when its arguments are, or where another begins, or the answer ends. In a stream the
client puts calls together by their index, so each gets its place among those that the client is given.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from addon.core.chat.contents import call_part, signature_of, signed, tool_call
from addon.core.documents import Document, Malformed, decode, get, objects, parts_of
from addon.core.json_array import ArrayDecoder

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


class _Open:
    """A call whose arguments are still to come. `is_whole`: an object has come, to its last bracket."""

    def __init__(self, entry: Document) -> None:
        self.entry = entry
        self.told = False  # its beginning was
        self.place: int | None = None  # among the calls that the client was given
        self.is_whole = False
        self._texts: list[str] = []
        self._brackets = ArrayDecoder()
        self._take(entry)

    def add(self, entry: Document) -> None:
        self.entry = {**entry, **self.entry}  # what came late is there too
        self._take(entry)

    def is_continued(self, entry: Document) -> bool:
        """Whether this is more of the same call, and not another."""
        others = (("id", entry.get("id")), ("index", entry.get("index")))
        return not any(value not in (None, "", self.entry.get(key)) for key, value in others)

    def closed(self) -> Document:
        """The call with all its arguments."""
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
        self.open: _Open | None = None
        self.shown = 0  # the calls that the client was given
        self.began = False  # the client was told whose message it is


class _Came(NamedTuple):
    """A part that was read: the call that it is of, and what of the document it was made of, None for nothing."""

    choice: _Choice
    call: _Open
    part: Document
    entry: Document | None

    def given(self, *, numbered: bool) -> Document | None:
        """What the client is given for it, with the call's place where that is asked for."""
        if self.call.place is None:
            self.call.place = self.choice.shown
            self.choice.shown += 1
        if self.entry is None or not numbered or self.entry.get("index") == self.call.place:
            return self.entry
        return {**self.entry, "index": self.call.place}


class Completions:
    """One answer, and all the answers of a loop that are joined to one for the client: `begin` starts the next."""

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}
        self._document: Document = {}  # the last that was read
        self._came: list[_Came] = []  # its calls
        self._head: Document = {}

    def begin(self) -> None:
        for choice in self._choices.values():
            choice.open = None

    def passed(self) -> Document | None:
        """The client is given what was read last: the document with its calls under other indexes, and without pieces
        of no call; None where it stays as it came."""
        given = {id(one.entry): one.given(numbered=True) for one in self._came}
        for choice in objects(self._document.get("choices")):
            self._choices[_index(choice)].began = True
        choices = [_numbered(choice, given) for choice in objects(self._document.get("choices"))]
        document, self._document, self._came = self._document, {}, []
        return {**document, "choices": choices} if choices != document.get("choices", []) else None

    # --- OpenAI → Gemini ----------------------------------------------------------------------------------------

    def read(self, document: object) -> Document | None:
        """The Gemini response that a document is; None where it is none, as an error."""
        self._document, self._came = {}, []
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
            response["usageMetadata"] = _counted(usage)
        return response

    def _candidate(self, choice: Document) -> Document:
        index = _index(choice)
        state = self._choices.setdefault(index, _Choice())
        whole = isinstance(choice.get("message"), dict)
        said = choice["message"] if whole else choice.get("delta")
        said = said if isinstance(said, dict) else {}
        finish = choice.get("finish_reason")
        parts: list[Document] = []
        if isinstance(text := said.get("content"), str) and text:
            parts.append({"text": text})
        if (signature := signature_of(said)) is not None:
            parts = [*parts[:-1], {**(parts[-1] if parts else {"text": ""}), "thoughtSignature": signature}]
        for entry in objects(said.get("tool_calls")):
            parts += self._take(state, entry)
        if whole or finish is not None:
            parts += self._close(state, None)
        candidate: Document = {"content": {"role": "model", "parts": parts}, "index": index}
        if isinstance(finish, str):
            candidate["finishReason"] = _reason(finish)
        return candidate

    def _take(self, state: _Choice, entry: Document) -> list[Document]:
        """A call, or a piece of one, as the parts that it comes to."""
        parts: list[Document] = []
        if state.open is None or not state.open.is_continued(entry):
            name = _function(entry).get("name")
            if not isinstance(name, str) or not name:
                return []
            parts += self._close(state, None)
            state.open = _Open(entry)
        else:
            state.open.add(entry)
        call = state.open
        if call.is_whole:
            return parts + self._close(state, entry)
        head: Document = {"willContinue": True}
        if not call.told:
            head |= {k: v for k, v in (("id", call.entry.get("id")), ("name", _function(entry)["name"])) if v}
        call.told = True
        return [*parts, self._part(state, call, {"functionCall": head}, entry)]

    def _close(self, state: _Choice, entry: Document | None) -> list[Document]:
        """The call that is open, which is complete; `entry` is what completed it, None where that was no piece."""
        call, state.open = state.open, None
        if call is None:
            return []
        part = call_part(call.closed())
        if call.told:
            part = {**part, "functionCall": {"args": part["functionCall"]["args"]}}
        return [self._part(state, call, part, entry)]

    def _part(self, state: _Choice, call: _Open, part: Document, entry: Document | None) -> Document:
        self._came.append(_Came(state, call, part, entry))
        return part

    # --- Gemini → OpenAI ----------------------------------------------------------------------------------------

    def written(self, seen: Document, came: Document | None, kind: str) -> Document:
        """A response as it is to be seen; `kind` is the document's object: chat.completion or chat.completion.chunk.
        `came` is the document that was read last, None for a response of the proxy's own."""
        head = {k: v for k, v in (came or self._head).items() if k not in ("choices", "usage")}
        made: Document = {"id": "", "object": kind, "created": 0, "model": ""} | head | {"object": kind}
        made["created"] = self._head.get("created", made["created"])
        made["id"] = seen.get("responseId") or made["id"]
        made["model"] = made["model"] or seen.get("modelVersion", "")
        choices = {_index(one): one for one in objects((came or {}).get("choices"))}
        candidates = list(objects(seen.get("candidates")))
        if came is not None and not choices and not any("finishReason" in one for one in candidates):
            candidates = []  # it tells of usage alone
        field = "message" if kind == "chat.completion" else "delta"
        made["choices"] = [self._choice(one, choices.get(_index(one), {}), field) for one in candidates]
        usage = seen.get("usageMetadata")
        if isinstance(usage, dict) and usage:
            given = (came or {}).get("usage")
            given = given if isinstance(given, dict) else {}
            made["usage"] = given if _counted(given) == usage else _told(usage, given)
        return made

    def _choice(self, candidate: Document, came: Document, field: str) -> Document:
        index = _index(candidate)
        state = self._choices.setdefault(index, _Choice())
        before = came.get(field)
        before = before if isinstance(before, dict) else {}
        said = {k: v for k, v in before.items() if k not in ("content", "tool_calls", "extra_content")}
        if field == "message" or not (came or state.began):
            said = {"role": "assistant"} | said
        elif state.began:
            said.pop("role", None)  # clients join what several events say of it, as they do with text
        state.began = True
        parts = parts_of(candidate.get("content") or {})
        text = "".join(str(part.get("text", "")) for part in parts if not part.get("thought"))
        calls = [part for part in parts if get(part, "functionCall") is not None]
        if text or (field == "message" and not calls):
            said["content"] = text
        if calls and (entries := self._calls(calls, numbered=field == "delta")):
            said["tool_calls"] = entries
        signature = [get(part, "thoughtSignature") for part in parts if get(part, "functionCall") is None]
        if last := [one for one in signature if one is not None]:
            said |= {"extra_content": before["extra_content"]} if "extra_content" in before else signed(last[-1])
        choice: Document = {"index": index, **came, field: said}
        choice["finish_reason"] = _finish(candidate, came.get("finish_reason"), state.shown)
        return choice

    def _calls(self, parts: Sequence[Document], *, numbered: bool) -> list[Document]:
        """The calls that the client is given, each as it came."""
        came = {id(one.part): one for one in self._came}
        given = [came[id(part)].given(numbered=numbered) if id(part) in came else tool_call(part) for part in parts]
        return [entry for entry in given if entry is not None]


def _numbered(choice: Document, given: Mapping[int, Document | None]) -> Document:
    """A choice of a stream with what the client is given for each entry of its calls."""
    delta = choice.get("delta")
    if not isinstance(delta, dict) or not isinstance(delta.get("tool_calls"), list):
        return choice
    entries = [one for entry in delta["tool_calls"] if (one := given.get(id(entry))) is not None]
    others = {key: value for key, value in delta.items() if key != "tool_calls"}
    return {**choice, "delta": {**others, "tool_calls": entries} if entries else others}


def _function(entry: Document) -> Document:
    function = entry.get("function")
    return function if isinstance(function, dict) else {}


def _index(document: Document) -> int:
    index = document.get("index")
    return index if isinstance(index, int) else 0


def _reason(finish: str) -> str:
    """A finish_reason as Gemini's. What OpenAI does not know is Gemini's own, with or without a word before it."""
    return _REASONS.get(finish) or finish.rpartition(":")[2].strip().upper()


def _finish(candidate: Document, came: Any, shown: int) -> Any:
    reason = candidate.get("finishReason")
    if reason is None:
        return None
    if isinstance(came, str) and _reason(came) == reason and (shown or came not in ("tool_calls", "function_call")):
        return came
    return "tool_calls" if shown and reason == "STOP" else _FINISHES.get(str(reason), reason)


def _counted(usage: Document) -> Document:
    """`usage` as Gemini's usageMetadata."""
    counts: Document = {}
    for name, path in _COUNTS.items():
        value: Any = usage
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, int):
            counts[name] = value
    return counts


def _told(counts: Document, given: Document) -> Document:
    """usageMetadata as `usage`, on top of what else the given one says."""
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
