"""The Live API of the strict local Gemini: what one connection answers, frame by frame. No I/O, no sockets.

The "model" is the one of ``model``, its directives included, and a few of this module's own, in the user's words:

- ``then cancel`` at the end takes the calls back as soon as they are made;
- ``go away`` announces the end of the connection first.

Audio is taken for text in UTF-8: the user has said it when the stream ends (``audioStreamEnd``, ``activityEnd``).
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any

from addon.demo import models, rules
from addon.demo.errors import Refused
from addon.demo.fields import decode_bytes, read
from addon.demo.model import answer
from addon.demo.models import Model
from addon.demo.routes import Route
from addon.demo.service import tokens

Json = dict[str, Any]

INVALID, POLICY = 1007, 1008
"""Codes that a WebSocket is closed with: a frame that is not right, and one that may not come now."""

_SCHEDULING = ("SCHEDULING_UNSPECIFIED", "SILENT", "WHEN_IDLE", "INTERRUPT")


class Closed(Exception):
    """The service closes the connection; ``reason`` is cut to what a close frame holds."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason.encode()[:123].decode(errors="ignore")


@dataclass(slots=True)
class _Pending:
    name: str
    blocks: bool


class LiveConnection:
    """``receive`` takes a frame's bytes and gives the documents that are answered, each for a frame of its own."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.tools: list[Json] = []
        self.contents: list[Json] = []
        self.heard = b""
        self.pending: dict[str, _Pending] = {}
        self.taken_back: set[str] = set()
        self._model: Model | None = None
        self._resumable = False

    def receive(self, data: bytes) -> list[Json]:
        """Raises ``Closed``."""
        try:
            document = json.loads(data)
        except ValueError as e:
            raise Closed(INVALID, f"Invalid JSON payload received. Unexpected token. {e}") from e
        try:
            message = read(document, "LiveClientMessage", self.route.place)
            if self._model is None:
                return self._setup(message)
            return self._message(message)
        except Refused as e:
            raise Closed(INVALID, e.message) from e

    def _setup(self, message: Json) -> list[Json]:
        setup = message.get("setup")
        if setup is None:
            raise Closed(INVALID, "setup must be the first message and only the first")  # own words
        named = setup.get("model", "")
        model = models.find(named.rpartition("/")[2])
        if model is None or not model.live:
            raise Closed(
                POLICY,
                f"{named} is not found for API version {self.route.version}, or is not supported for "
                "bidiGenerateContent.",
            )
        self._declare(setup.get("tools") or [], model)
        _check_setup(setup, model)
        self._model = model
        self._resumable = "sessionResumption" in setup
        return [{"setupComplete": {}}]

    def _declare(self, tools: list[Json], model: Model) -> None:
        rules.check_tools({"tools": tools}, model, self.route.place, live=True)
        self.tools = tools

    def _message(self, message: Json) -> list[Json]:
        match next(iter(message.items()), None):
            case ("clientContent", content):
                return self._content(content)
            case ("realtimeInput", given):
                return self._input(given)
            case ("toolResponse", given):
                return self._responses(given.get("functionResponses") or [])
            case ("contextUpdate", update):
                assert self._model is not None
                if "tools" in update:
                    self._declare(update["tools"].get("tools") or [], self._model)
                return []
            case ("setup", _):
                raise Closed(INVALID, "setup must be the first message and only the first")  # own words
        raise Closed(INVALID, "Request contains an invalid argument.")

    # --- what the user says -----------------------------------------------------------------------------------

    def _content(self, content: Json) -> list[Json]:
        turns = content.get("turns") or []
        if any(not turn.get("parts") for turn in turns):
            raise Closed(INVALID, "Request contains an invalid argument.")
        self.contents += turns
        if not content.get("turnComplete"):
            return []
        if not self.contents:
            raise Closed(INVALID, "Request contains an invalid argument.")
        return [*self._interrupted(), *self._speak()]

    def _input(self, given: Json) -> list[Json]:
        assert self._model is not None
        if any(one.blocks for one in self.pending.values()) and not self._model.waits_for_none:
            raise Closed(POLICY, "Operation is not implemented, or supported, or enabled.")
        if "mediaChunks" in given:
            raise Closed(INVALID, "realtime_input.media_chunks is deprecated. Use audio, video, or text instead.")
        out = self._interrupted()
        self.heard += decode_bytes((given.get("audio") or {}).get("data", "")) or b""
        words = given.get("text", "")
        if self.heard and (given.get("audioStreamEnd") or "activityEnd" in given):
            words, self.heard = self.heard.decode(errors="replace"), b""
        if not words:
            return out
        self.contents.append({"role": "user", "parts": [{"text": words}]})
        return [*out, *self._speak()]

    def _interrupted(self) -> list[Json]:
        """Input of the user ends what the model waits for."""
        return self._cancelled([call_id for call_id, one in self.pending.items() if one.blocks])

    def _cancelled(self, ids: list[str]) -> list[Json]:
        for call_id in ids:
            del self.pending[call_id]
        self.taken_back.update(ids)
        return [{"toolCallCancellation": {"ids": ids}}] if ids else []

    # --- what tools say ---------------------------------------------------------------------------------------

    def _responses(self, responses: list[Json]) -> list[Json]:
        if not responses:
            raise Closed(INVALID, "Request contains an invalid argument.")
        assert self._model is not None
        waited, scheduling = False, ""
        parts: list[Json] = []
        for one in responses:
            call_id = one.get("id", "")
            if call_id in self.taken_back:
                continue  # the client may have answered before it was told
            pending = self.pending.get(call_id)
            if pending is None:
                raise Closed(POLICY, "Requested entity was not found.")
            self._check_response(one, pending)
            parts.append({"functionResponse": {"name": pending.name, **one}})
            waited = waited or pending.blocks
            scheduling = one.get("scheduling", scheduling)
            if not one.get("willContinue"):
                del self.pending[call_id]
        if not parts:
            return []
        self.contents.append({"role": "user", "parts": parts})
        if any(one.blocks for one in self.pending.values()) or (not waited and scheduling == "SILENT"):
            return []
        if scheduling == "INTERRUPT" and self.heard and self._model.waits_for_none:
            return []  # told when the user has finished
        interrupts = [{"serverContent": {"interrupted": True}}] if scheduling == "INTERRUPT" else []
        return [*interrupts, *self._speak()]

    def _check_response(self, response: Json, pending: _Pending) -> None:
        """Where the service's words are not public, these are own ones."""
        if response.get("name", pending.name) != pending.name:
            raise Closed(INVALID, f"function_response.name does not match that of the call: {pending.name}")
        if "response" not in response:
            raise Closed(INVALID, "function_response.response is missing")
        if pending.blocks and ("scheduling" in response or "willContinue" in response):
            raise Closed(INVALID, "scheduling and will_continue are for NON_BLOCKING functions alone")
        if response.get("scheduling", _SCHEDULING[0]) not in _SCHEDULING:
            raise Closed(INVALID, f"no such scheduling: {response['scheduling']}")

    # --- what the model says ----------------------------------------------------------------------------------

    def _speak(self) -> list[Json]:
        said = answer({"contents": self.contents, "tools": self.tools})
        words = self._last_words()
        out: list[Json] = [{"goAway": {"timeLeft": "10s"}}] if "go away" in words else []
        if said.text:
            self.contents.append({"role": "model", "parts": [{"text": said.text}]})
            out.append({"serverContent": {"modelTurn": {"parts": [{"text": said.text}], "role": "model"}}})
        if not said.calls:
            return [*out, *self._complete()]
        calls: list[Json] = [
            {"name": c.name, "args": c.args, "id": f"function-call-{secrets.randbits(63)}"} for c in said.calls
        ]
        self.contents.append({"role": "model", "parts": [{"functionCall": call} for call in calls]})
        out.append({"toolCall": {"functionCalls": calls}})
        free = self._free()
        self.pending |= {call["id"]: _Pending(call["name"], call["name"] not in free) for call in calls}
        if words.rstrip().endswith("then cancel"):
            return [*out, *self._cancelled([call["id"] for call in calls]), *self._complete()]
        if all(call["name"] in free for call in calls):
            out += self._complete()
        return out

    def _complete(self) -> list[Json]:
        count = tokens({"contents": self.contents, "tools": self.tools})
        out: list[Json] = [
            {"serverContent": {"generationComplete": True}},
            {"serverContent": {"turnComplete": True}, "usageMetadata": {"totalTokenCount": count}},
        ]
        if self._resumable:
            out.append({"sessionResumptionUpdate": {"newHandle": secrets.token_hex(8), "resumable": True}})
        return out

    def _free(self) -> set[str]:
        """The functions that are not waited for."""
        assert self._model is not None
        undeclared = (None, "UNSPECIFIED", 0) if self._model.waits_for_none else ()
        return {
            declaration["name"]
            for tool in self.tools
            for declaration in tool.get("functionDeclarations") or []
            if declaration.get("behavior") in ("NON_BLOCKING", 2, *undeclared)
        }

    def _last_words(self) -> str:
        spoken = [c for c in self.contents if c.get("role") != "model" and any("text" in p for p in c["parts"])]
        return "".join(part.get("text", "") for part in spoken[-1]["parts"]) if spoken else ""


def _check_setup(setup: Json, model: Model) -> None:
    """What a connection may not ask of a model. The words are own ones."""
    if not model.waits_for_none:
        return
    config = setup.get("generationConfig") or {}
    if "thinkingLevel" in (config.get("thinkingConfig") or {}):
        raise Closed(INVALID, "thinking_level is not supported by this model.")
    if "enableAffectiveDialog" in config:
        raise Closed(INVALID, "enable_affective_dialog is not supported by this model.")
    proactivity = setup.get("proactivity") or {}
    if proactivity.get("proactiveAudio", proactivity.get("proactive_audio", True)) is False:
        raise Closed(INVALID, "proactive_audio cannot be turned off for this model.")
