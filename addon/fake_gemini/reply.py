"""Turns the model's answers into unary bodies and stream events, in the format of each surface.

Key order, ids, signatures and the split into chunks follow recorded exchanges. Pure except for random ids.
"""

import re
import secrets
import string
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

from addon.fake_gemini import signatures
from addon.fake_gemini.errors import Json
from addon.fake_gemini.model import ModelAnswer
from addon.fake_gemini.routes import Model

_ALPHABET = string.ascii_lowercase + string.digits
_WORDS = re.compile(r"\S+\s*|\s+")
FINISH_MESSAGE = "Model generated function call(s)."


@dataclass(frozen=True, slots=True)
class Shape:
    """How a stream is cut, for tests. ``None``: as the model's generation does.

    ``each``: one chunk per parallel call. ``trailing``: the finishReason in its own last chunk. ``bare_finish``: that
    chunk has no content. ``usage``: a further chunk with only usageMetadata. ``no_finish``: no finishReason.
    ``pieces``: chunks per text. ``delay``: seconds between events. ``cut``: the number of events after which the
    connection breaks. ``bytes``: the size of network writes, regardless of event boundaries.
    """

    each: bool = False
    trailing: bool | None = None
    bare_finish: bool = False
    usage: bool = False
    no_finish: bool = False
    pieces: int = 3
    delay: float = 0.0
    cut: int | None = None
    bytes: int | None = None

    def changed(self, words: str) -> Self:
        """This shape with changes such as ``"each, usage, no_finish, trailing=0, cut=3, bytes=7, delay=0.01"``.

        Raises ValueError for an unknown name.
        """
        changes: dict[str, Any] = {}
        for word in filter(None, re.split(r"[,\s]+", words)):
            key, _, value = word.partition("=")
            if key in ("each", "trailing", "bare_finish", "usage", "no_finish"):
                changes[key] = value not in ("0", "false")
            elif key in ("pieces", "cut", "bytes"):
                changes[key] = int(value)
            elif key == "delay":
                changes[key] = float(value)
            else:
                raise ValueError(f"no such knob: {key}")
        return replace(self, **changes)


@dataclass
class Reply:
    """One answer of the service: its candidates, and the fields that every body or event repeats."""

    model: Model
    place: frozenset[str]
    answers: list[ModelAnswer]
    prompt_tokens: int
    thoughts: bool = False
    response_id: str = field(default_factory=lambda: secrets.token_urlsafe(17))
    trace_id: str = field(default_factory=lambda: secrets.token_hex(8))

    def unary(self) -> Json:
        """The whole answer in one document."""
        candidates = []
        for index, answer in enumerate(self.answers):
            text = self._text_parts(answer, 1, signed=not answer.calls)
            parts = self._thought_parts(answer) + text + self._call_parts(answer)
            candidates.append(self._candidate(index, parts or None, answer))
        return self._envelope(self._document(candidates))

    def events(self, shape: Shape, *, partial_args: bool = False) -> list[Json]:
        """The stream's documents, in order."""
        trailing = self.model.is_gemini_3 if shape.trailing is None else shape.trailing
        events: list[Json] = []
        for index, answer in enumerate(self.answers):
            chunks = self._chunks(answer, shape, partial_args)
            if trailing and (answer.calls or answer.text):
                last: list[Json] | None = None if shape.bare_finish else [{"text": ""}]
                if last and self.model.is_gemini_3 and not answer.calls:
                    last[0]["thoughtSignature"] = signatures.sign_text()
                chunks.append(last)
            given = 0
            for n, parts in enumerate(chunks):
                final = answer if n == len(chunks) - 1 and not shape.no_finish else None
                candidate = self._candidate(index, parts, final)
                words = sum(
                    len(_WORDS.findall(part["text"]))
                    for part in parts or []
                    if not part.get("thought") and "text" in part
                )
                given += words
                if answer.checkpoint is not None and final is None and words:
                    candidate["continuationToken"] = answer.checkpoint(given)
                events.append(self._document([candidate]))
        if shape.usage:
            events.append(self._document(None))
        return [self._envelope(event) for event in events]

    def _chunks(self, answer: ModelAnswer, shape: Shape, partial_args: bool) -> list[list[Json] | None]:
        parts = self._thought_parts(answer) + self._text_parts(answer, shape.pieces, signed=False)
        chunks: list[list[Json] | None] = [[part] for part in parts]
        calls = self._call_parts(answer)
        if partial_args:
            for part in calls:
                chunks += [[piece] for piece in _partial(part)]
        elif shape.each:
            chunks += [[part] for part in calls]
        elif calls:
            chunks.append(calls)
        return chunks or [None]

    def _thought_parts(self, answer: ModelAnswer) -> list[Json]:
        if not self.thoughts or not (answer.text or answer.calls):
            return []
        return [{"text": "**Thinking it over**\n\nThe user's words say what to do.\n\n\n", "thought": True}]

    def _text_parts(self, answer: ModelAnswer, pieces: int, *, signed: bool) -> list[Json]:
        if not answer.text:
            return []
        parts: list[Json] = [{"text": piece} for piece in split(answer.text, pieces)]
        if signed and self.model.is_gemini_3:
            parts[-1]["thoughtSignature"] = signatures.sign_text()
        return parts

    def _call_parts(self, answer: ModelAnswer) -> list[Json]:
        parts = []
        for n, call in enumerate(answer.calls):
            body: Json = {"name": call.name, "args": call.args}
            if self.model.is_gemini_3 and "vertex-v1" not in self.place:
                body["id"] = self._id()
            part: Json = {"functionCall": body}
            if n == 0 and self.model.is_gemini_3:
                signature = {"thoughtSignature": signatures.sign_call(body, declared=call.declared)}
                part = {**signature, **part} if "codeassist" in self.place else {**part, **signature}
            parts.append(part)
        return parts

    def _id(self) -> str:
        if "codeassist" in self.place:
            return f"call_{secrets.randbelow(9_000_000) + 1_000_000}"
        return new_id()

    def _candidate(self, index: int, parts: list[Json] | None, final: ModelAnswer | None) -> Json:
        candidate: Json = {}
        if parts is not None:
            vertex = "vertex" in self.place
            content: Json = {"role": "model", "parts": parts} if vertex else {"parts": parts, "role": "model"}
            candidate["content"] = content
        if final is not None:
            candidate["finishReason"] = final.finish
        if "vertex" not in self.place or index:
            candidate["index"] = index
        if final is not None and any("functionCall" in part for part in parts or []) and "vertex" not in self.place:
            candidate["finishMessage"] = FINISH_MESSAGE
        if final is not None and final.token is not None:
            candidate["continuationToken"] = final.token
        return candidate

    def _document(self, candidates: list[Json] | None) -> Json:
        prompt, output = self.prompt_tokens, output_tokens(self.answers)
        usage: Json = {"promptTokenCount": prompt}
        if output:
            usage["candidatesTokenCount"] = output
        usage["totalTokenCount"] = prompt + output
        if "vertex" in self.place and "codeassist" not in self.place:
            usage["trafficType"] = "ON_DEMAND"
        usage["promptTokensDetails"] = [{"modality": "TEXT", "tokenCount": prompt}]
        document: Json = {} if candidates is None else {"candidates": candidates}
        return document | {
            "usageMetadata": usage,
            "modelVersion": self.model.name,
            "responseId": self.response_id,
        }

    def _envelope(self, document: Json) -> Json:
        if "codeassist" in self.place:
            return {"response": document, "traceId": self.trace_id, "metadata": {}}
        return document


def new_id() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(8))


def output_tokens(answers: list[ModelAnswer]) -> int:
    """A rough count."""
    return sum(len(answer.text) // 4 + 12 * len(answer.calls) for answer in answers)


def split(text: str, pieces: int) -> list[str]:
    """The text in up to ``pieces`` parts, cut between words if possible."""
    words = _WORDS.findall(text)
    size = max(1, -(-len(words) // max(1, pieces)))
    return ["".join(words[n : n + size]) for n in range(0, len(words), size)]


def _partial(part: Json) -> list[Json]:
    """A call with streamed arguments, as Vertex sends it; whole if partialArgs cannot express them."""
    call = part["functionCall"]
    try:
        leaves = list(_leaves(call["args"], "$"))
    except ValueError:
        return [part]
    head = {key: value for key, value in call.items() if key != "args"} | {"willContinue": True}
    pieces = [part | {"functionCall": head}]
    for path, value in leaves:
        pieces += [
            {"functionCall": {"partialArgs": [{"jsonPath": path, **piece}], "willContinue": True}}
            for piece in _values(value)
        ]
    return [*pieces, {"functionCall": {}}]


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(path, scalar) pairs. Raises ValueError for an empty object or list inside."""
    if isinstance(value, dict | list):
        if not value and path != "$":
            raise ValueError(path)
        if isinstance(value, list):
            steps = {f"[{n}]": item for n, item in enumerate(value)}
        else:
            steps = {
                f".{key}" if re.fullmatch(r"[A-Za-z_]\w*", key) else f"['{key}']": item for key, item in value.items()
            }
        for step, item in steps.items():
            yield from _leaves(item, path + step)
    else:
        yield path, value


def _values(value: Any) -> list[Json]:
    if isinstance(value, str):
        half = len(value) // 2
        if not half:
            return [{"stringValue": value}]
        return [{"stringValue": value[:half], "willContinue": True}, {"stringValue": value[half:]}]
    if isinstance(value, bool):
        return [{"boolValue": value}]
    return [{"nullValue": "NULL_VALUE"}] if value is None else [{"numberValue": value}]
