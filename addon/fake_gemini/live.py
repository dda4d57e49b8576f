"""The strict local Gemini's Live API: the answers of one connection, frame by frame. No I/O, no sockets.

The "model" is ``model``, with its directives, and two more in the user's words:

- ``then cancel`` at the end cancels the calls as soon as they are made;
- ``go away`` first announces the end of the connection.

Audio is read as UTF-8 text, which is complete when the stream ends (``audioStreamEnd``, ``activityEnd``).
"""

import json
import secrets
from dataclasses import dataclass

from addon.fake_gemini import routes, rules
from addon.fake_gemini.errors import Json, Refused
from addon.fake_gemini.fields import decode_bytes, read
from addon.fake_gemini.model import answer
from addon.fake_gemini.routes import Model, Route
from addon.fake_gemini.service import tokens

INVALID, POLICY = 1007, 1008
"""Close codes of a WebSocket: for an invalid frame, and for a frame that is not allowed now."""

_SCHEDULING = ("SCHEDULING_UNSPECIFIED", "SILENT", "WHEN_IDLE", "INTERRUPT")


class Closed(Exception):
    """The service closes the connection. ``reason`` is cut to the size of a close frame."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason.encode()[:123].decode(errors="ignore")


@dataclass(slots=True)
class _Pending:
    name: str
    is_blocking: bool


class LiveConnection:
    """``receive`` takes a frame's bytes and returns the documents to answer, one per frame."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.tools: list[Json] = []
        self.contents: list[Json] = []
        self.audio = b""
        self.pending: dict[str, _Pending] = {}
        self.cancelled: set[str] = set()
        self._model: Model | None = None
        self._resumable = False

    def receive(self, data: bytes) -> list[Json]:
        """Answer a frame. Raises ``Closed``."""
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
        model = routes.find_model(named.rpartition("/")[2])
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

    # --- the user's input -------------------------------------------------------------------------------------

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
        if any(pending.is_blocking for pending in self.pending.values()) and not self._model.waits_only_if_declared:
            raise Closed(POLICY, "Operation is not implemented, or supported, or enabled.")
        if "mediaChunks" in given:
            raise Closed(INVALID, "realtime_input.media_chunks is deprecated. Use audio, video, or text instead.")
        out = self._interrupted()
        self.audio += decode_bytes((given.get("audio") or {}).get("data", "")) or b""
        words = given.get("text", "")
        if self.audio and (given.get("audioStreamEnd") or "activityEnd" in given):
            words, self.audio = self.audio.decode(errors="replace"), b""
        if not words:
            return out
        self.contents.append({"role": "user", "parts": [{"text": words}]})
        return [*out, *self._speak()]

    def _interrupted(self) -> list[Json]:
        """The user's input cancels the calls that the model waits for."""
        return self._cancel([call_id for call_id, pending in self.pending.items() if pending.is_blocking])

    def _cancel(self, ids: list[str]) -> list[Json]:
        for call_id in ids:
            del self.pending[call_id]
        self.cancelled.update(ids)
        return [{"toolCallCancellation": {"ids": ids}}] if ids else []

    # --- tools' responses -------------------------------------------------------------------------------------

    def _responses(self, responses: list[Json]) -> list[Json]:
        if not responses:
            raise Closed(INVALID, "Request contains an invalid argument.")
        assert self._model is not None
        has_blocking, scheduling = False, ""
        parts: list[Json] = []
        for response in responses:
            call_id = response.get("id", "")
            if call_id in self.cancelled:
                continue  # the client may have answered before it got the cancellation
            pending = self.pending.get(call_id)
            if pending is None:
                raise Closed(POLICY, "Requested entity was not found.")
            self._check_response(response, pending)
            parts.append({"functionResponse": {"name": pending.name, **response}})
            has_blocking = has_blocking or pending.is_blocking
            scheduling = response.get("scheduling", scheduling)
            if not response.get("willContinue"):
                del self.pending[call_id]
        if not parts:
            return []
        self.contents.append({"role": "user", "parts": parts})
        if any(pending.is_blocking for pending in self.pending.values()) or (
            not has_blocking and scheduling == "SILENT"
        ):
            return []
        if scheduling == "INTERRUPT" and self.audio and self._model.waits_only_if_declared:
            return []  # answered when the user has finished
        interrupts = [{"serverContent": {"interrupted": True}}] if scheduling == "INTERRUPT" else []
        return [*interrupts, *self._speak()]

    def _check_response(self, response: Json, pending: _Pending) -> None:
        """Check a response. The messages are own words."""
        if response.get("name", pending.name) != pending.name:
            raise Closed(INVALID, f"function_response.name does not match that of the call: {pending.name}")
        if "response" not in response:
            raise Closed(INVALID, "function_response.response is missing")
        if pending.is_blocking and ("scheduling" in response or "willContinue" in response):
            raise Closed(INVALID, "scheduling and will_continue are for NON_BLOCKING functions alone")
        if response.get("scheduling", _SCHEDULING[0]) not in _SCHEDULING:
            raise Closed(INVALID, f"no such scheduling: {response['scheduling']}")

    # --- the model's output -----------------------------------------------------------------------------------

    def _speak(self) -> list[Json]:
        output = answer({"contents": self.contents, "tools": self.tools})
        words = self._last_words()
        out: list[Json] = [{"goAway": {"timeLeft": "10s"}}] if "go away" in words else []
        if output.text:
            self.contents.append({"role": "model", "parts": [{"text": output.text}]})
            out.append({"serverContent": {"modelTurn": {"parts": [{"text": output.text}], "role": "model"}}})
        if not output.calls:
            return [*out, *self._complete()]
        calls: list[Json] = [
            {"name": c.name, "args": c.args, "id": f"function-call-{secrets.randbits(63)}"} for c in output.calls
        ]
        self.contents.append({"role": "model", "parts": [{"functionCall": call} for call in calls]})
        out.append({"toolCall": {"functionCalls": calls}})
        non_blocking = self._non_blocking()
        self.pending |= {call["id"]: _Pending(call["name"], call["name"] not in non_blocking) for call in calls}
        if words.rstrip().endswith("then cancel"):
            return [*out, *self._cancel([call["id"] for call in calls]), *self._complete()]
        if all(call["name"] in non_blocking for call in calls):
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

    def _non_blocking(self) -> set[str]:
        """The names of functions that the model does not wait for."""
        assert self._model is not None
        undeclared = (None, "UNSPECIFIED", 0) if self._model.waits_only_if_declared else ()
        return {
            declaration["name"]
            for tool in self.tools
            for declaration in tool.get("functionDeclarations") or []
            if declaration.get("behavior") in ("NON_BLOCKING", 2, *undeclared)
        }

    def _last_words(self) -> str:
        words = [c for c in self.contents if c.get("role") != "model" and any("text" in p for p in c["parts"])]
        return "".join(part.get("text", "") for part in words[-1]["parts"]) if words else ""


def _check_setup(setup: Json, model: Model) -> None:
    """Refuse settings that the model does not support. The messages are own words."""
    if not model.waits_only_if_declared:
        return
    config = setup.get("generationConfig") or {}
    if "thinkingLevel" in (config.get("thinkingConfig") or {}):
        raise Closed(INVALID, "thinking_level is not supported by this model.")
    if "enableAffectiveDialog" in config:
        raise Closed(INVALID, "enable_affective_dialog is not supported by this model.")
    proactivity = setup.get("proactivity") or {}
    if proactivity.get("proactiveAudio", proactivity.get("proactive_audio", True)) is False:
        raise Closed(INVALID, "proactive_audio cannot be turned off for this model.")
