"""Answers of the OpenAI-compatible endpoint: chat completions and their chunks.

Key order, ids, signatures and the odd finish_reason of streams are the service's. Pure except for random ids and the
time of day.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from addon.fake_gemini import signatures
from addon.fake_gemini.errors import Json
from addon.fake_gemini.model import ModelAnswer
from addon.fake_gemini.reply import Shape, split
from addon.fake_gemini.routes import Model

_FINISH = {"STOP": "stop", "MAX_TOKENS": "length", "SAFETY": "content_filter"}


@dataclass
class ChatReply:
    """One answer: its choices, and the fields that all its documents repeat."""

    model: Model
    answers: list[ModelAnswer]
    prompt_tokens: int
    id: str = field(default_factory=lambda: secrets.token_urlsafe(17))
    created: int = field(default_factory=lambda: int(time.time()))

    def unary(self) -> Json:
        """The whole answer."""
        choices = []
        for index, answer in enumerate(self.answers):
            message: Json = {"role": "assistant"}
            if answer.text:
                message["content"] = answer.text
                if self.model.is_gemini_3 and not answer.calls:
                    message["extra_content"] = _google(signatures.sign_text())
            if answer.calls:
                message["tool_calls"] = self._calls(answer)
            finish = "tool_calls" if answer.calls else _finish(answer)
            choices.append({"finish_reason": finish, "index": index, "message": message})
        return self._document("chat.completion", choices) | {"usage": self._usage()}

    def events(self, shape: Shape, *, usage: bool) -> Iterator[bytes]:
        """The stream's events, including ``[DONE]``."""
        for chunk in self._chunks(shape, usage=usage):
            yield f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
        yield b"data: [DONE]\n\n"

    def _chunks(self, shape: Shape, *, usage: bool) -> Iterator[Json]:
        trailing = self.model.is_gemini_3 if shape.trailing is None else shape.trailing
        for index, answer in enumerate(self.answers):
            deltas: list[Json] = [{"content": piece} for piece in split(answer.text, shape.pieces)]
            calls = self._calls(answer)
            if shape.each:
                deltas += [{"tool_calls": [{**call, "index": 0}]} for call in calls]
            elif calls:
                deltas.append({"tool_calls": [{**call, "index": n} for n, call in enumerate(calls)]})
            if trailing or not deltas:
                signed = self.model.is_gemini_3 and answer.text and not calls
                deltas.append({"extra_content": _google(signatures.sign_text())} if signed else {})
            for n, delta in enumerate(deltas):
                choice: Json = {"delta": {**delta, "role": "assistant"}, "index": index}
                if n == len(deltas) - 1 and not shape.no_finish:
                    choice["finish_reason"] = _finish(answer)  # the same with calls
                chunk = self._document("chat.completion.chunk", [choice])
                yield chunk | ({"usage": self._usage()} if usage else {})
        if shape.usage:
            yield self._document("chat.completion.chunk", []) | {"usage": self._usage()}

    def _calls(self, answer: ModelAnswer) -> list[Json]:
        calls = []
        for n, call in enumerate(answer.calls):
            call_id = f"function-call-{secrets.randbelow(9 * 10**18) + 10**18}"
            function = {"arguments": json.dumps(call.args, ensure_ascii=False), "name": call.name}
            tool_call: Json = {"function": function, "id": call_id, "type": "function"}
            if n == 0 and self.model.is_gemini_3:
                body = {"name": call.name, "args": call.args, "id": call_id}
                tool_call = {"extra_content": _google(signatures.sign_call(body, declared=call.declared)), **tool_call}
            calls.append(tool_call)
        return calls

    def _document(self, kind: str, choices: list[Json]) -> Json:
        return {
            "choices": choices,
            "created": self.created,
            "id": self.id,
            "model": self.model.name,
            "object": kind,
        }

    def _usage(self) -> Json:
        completion = sum(len(a.text) // 4 + 12 * len(a.calls) for a in self.answers)
        return {
            "completion_tokens": completion,
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + completion,
        }


def _google(signature: str) -> Json:
    return {"google": {"thought_signature": signature}}


def _finish(answer: ModelAnswer) -> str:
    if answer.finish in _FINISH:
        return _FINISH[answer.finish]
    kind = "function_call_filter" if answer.finish.endswith("_CALL") else "content_filter"
    return f"{kind}: {answer.finish}"
