"""The rules of ``contents``: roles, order, counts, and signatures by value.

Works on the canonical form that ``fields.read`` returns. Pure. Comments mark messages whose wording by the service is
not public, and rules that are stricter than the service's.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from addon.fake_gemini import signatures
from addon.fake_gemini.errors import Refused
from addon.fake_gemini.fields import decode_bytes
from addon.fake_gemini.routes import Model

Part = dict[str, Any]

CALL_ORDER = (
    "Please ensure that function call turn comes immediately after a user turn or after a function response turn."
)
RESPONSE_ORDER = "Please ensure that function response turn comes immediately after a function call turn."
COUNT = (
    "Please ensure that the number of function response parts is equal to the number of function call parts of the "
    "function call turn."
)
LAST_ROLE = "Please ensure that single turn requests end with a user role or the role field is empty."
NO_CONTENTS = "* GenerateContentRequest.contents: contents is not specified\n"
LEARN_MORE = "Learn more: https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/gemini"

# the service also accepts a part with only a signature or videoMetadata
_DATA = frozenset(
    "text inlineData fileData functionCall functionResponse executableCode codeExecutionResult toolCall "
    "toolResponse thoughtSignature videoMetadata".split()
)


@dataclass
class HistoryTurn:
    """Consecutive contents of one side. ``places``: each part's 1-based position in contents."""

    role: str
    parts: list[Part] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [p["functionCall"] for p in self.parts if "functionCall" in p]

    @property
    def responses(self) -> list[dict[str, Any]]:
        return [p["functionResponse"] for p in self.parts if "functionResponse" in p]

    @property
    def text(self) -> str:
        """The joined text, without thoughts."""
        return "\n".join(p["text"] for p in self.parts if p.get("text") and not p.get("thought"))


def turns(contents: list[dict[str, Any]]) -> list[HistoryTurn]:
    """Contents as turns: consecutive contents of one side are joined; a functionResponse is always the user's."""
    result: list[HistoryTurn] = []
    for position, content in enumerate(contents, 1):
        parts = content.get("parts") or []
        is_model = content.get("role") == "model" and not any("functionResponse" in p for p in parts)
        role = "model" if is_model else "user"
        if not result or result[-1].role != role:
            result.append(HistoryTurn(role))
        result[-1].parts += parts
        result[-1].places += [position] * len(parts)
    return result


def last_words(history: list[HistoryTurn]) -> int:
    """Index of the last user turn with text. The turns after it are the steps that it led to."""
    return max((n for n, turn in enumerate(history) if turn.role == "user" and turn.text.strip()), default=0)


def check_contents(contents: list[dict[str, Any]], model: Model, place: frozenset[str]) -> None:
    """Check roles and parts of each Content. Raises ``Refused``."""
    vertex = "vertex" in place
    if not contents:
        raise Refused(
            f"Unable to submit request because at least one contents field is required. {LEARN_MORE}"
            if vertex
            else NO_CONTENTS
        )
    valid = {None, "", "user", "model"} | (set() if model.is_gemini_3_5 else {"function"})
    empty = []
    for n, content in enumerate(contents):
        role, parts = content.get("role"), content.get("parts") or []
        if role not in valid:
            raise Refused("Please use a valid role: user, model.")
        if not parts:
            if vertex:
                raise Refused(
                    "Unable to submit request because it must include at least one parts field, which describes the "
                    f"prompt input. {LEARN_MORE}"
                )
            raise Refused(f"* GenerateContentRequest.contents[{n}].parts: contents.parts must not be empty.\n")
        for m, part in enumerate(parts):
            if part.keys().isdisjoint(_DATA):
                empty.append(
                    f"* GenerateContentRequest.contents[{n}].parts[{m}].data: required oneof field 'data' must have "
                    "one initialized field\n"
                )
            _check_part(part, where := f"contents[{n}].parts[{m}]")
            if "functionResponse" in part:
                check_parts(part["functionResponse"], where, model, place)
        calls = any("functionCall" in p for p in parts)
        responses = any("functionResponse" in p for p in parts)
        if role == "model" and responses and "codeassist" not in place:
            raise Refused(RESPONSE_ORDER)  # only Code Assist's own clients answer as "model"
        if calls and (role != "model" or responses):
            raise Refused(CALL_ORDER)
    if empty:
        raise Refused("".join(empty))


def _check_part(part: Part, where: str) -> None:
    for key in ("functionCall", "functionResponse"):
        if key in part and not part[key].get("name"):
            snake = "function_call" if key == "functionCall" else "function_response"
            raise Refused(f"* GenerateContentRequest.{where}.{snake}.name: Name cannot be empty.\n")


def check_order(history: list[HistoryTurn], model: Model) -> None:
    """Check the order of turns, and that each call has its response. Raises ``Refused``."""
    if history[-1].role == "model":
        raise Refused(LAST_ROLE)
    before: HistoryTurn | None = None
    for turn in history:
        if turn.role == "model":
            if turn.calls and before is None:
                raise Refused(CALL_ORDER)
        else:
            _check_responses(turn, before, model)
        before = turn


def _check_responses(turn: HistoryTurn, before: HistoryTurn | None, model: Model) -> None:
    calls = before.calls if before else []
    responses = turn.responses
    if not calls:
        if responses:
            raise Refused(RESPONSE_ORDER)
        return
    if len(responses) != len(calls):
        raise Refused(COUNT)
    if not all("functionResponse" in part for part in turn.parts[: len(responses)]):
        raise Refused(RESPONSE_ORDER)  # the user's text comes after the responses
    others = {call["name"] for call in calls}
    for call, response in zip(calls, responses, strict=True):
        # own words; before Gemini 3 the service accepts any name that is not another call's
        if call["name"] != response["name"] and (model.is_gemini_3 or response["name"] in others):
            raise Refused(
                "Please ensure that function response parts come in the order of the function call parts: expected "
                f"`{call['name']}`, got `{response['name']}`."
            )
        if call.get("id") and response.get("id") and call["id"] != response["id"]:
            raise Refused(
                "Please ensure that the id of each function response is the id of its function call: expected "
                f"`{call['id']}`, got `{response['id']}`."
            )


def check_declared(history: list[HistoryTurn], declared: frozenset[str]) -> None:
    """Check that calls in the history are of declared functions. Raises ``Refused``.

    Stricter than the service, which often continues and then answers MALFORMED_FUNCTION_CALL; a refusal shows the
    mistake at once. Calls that this server invented itself, by their signatures, are accepted.
    """
    for turn in history:
        for part, position in zip(turn.parts, turn.places, strict=True):
            call = part.get("functionCall")
            if call is None or call["name"] in declared or signatures.made_up(part.get("thoughtSignature", "")):
                continue
            raise Refused(
                f"Function call `{call['name']}` in contents, position {position}, is not declared in tools of this "
                "request."
            )


def check_signatures(history: list[HistoryTurn], model: Model, place: frozenset[str]) -> int:
    """Check the values and places of signatures. Returns the number of dummies. Raises ``Refused``."""
    first_checked = _current_turn(history) if not model.is_gemini_3_5 else 0
    dummies = 0
    for n, turn in enumerate(history):
        has_call = False
        for part, position in zip(turn.parts, turn.places, strict=True):
            signature = part.get("thoughtSignature")
            call = part.get("functionCall")
            if signature and signatures.is_dummy(signature):
                dummies += 1
            elif signature and not _belongs(signature, part, turn.role):
                raise Refused(_corrupted(model, place))
            elif call and not signature and not has_call and model.is_gemini_3 and n >= first_checked:
                raise Refused(
                    "Function call is missing a thought_signature in functionCall parts. This is required for tools to "
                    "work correctly, and missing thought_signature may lead to degraded model performance. Additional "
                    f"data, function call `default_api:{call['name']}` , position {position}. Please refer to "
                    "https://ai.google.dev/gemini-api/docs/thought-signatures for more details."
                )
            has_call = has_call or call is not None
    return dummies


def _current_turn(history: list[HistoryTurn]) -> int:
    """Index of the last user turn without responses.

    Responses followed by text do not begin a turn here. The service may differ; this is the stricter reading, and it
    reveals lost signatures.
    """
    for n in range(len(history) - 1, -1, -1):
        if history[n].role == "user" and not history[n].responses:
            return n
    return 0


def _belongs(signature: str, part: Part, role: str) -> bool:
    if role == "user":
        return False
    if "functionCall" in part:
        return signatures.signs_call(signature, part["functionCall"])
    return signatures.signs_text(signature)


def _corrupted(model: Model, place: frozenset[str]) -> str:
    if "vertex" in place and "codeassist" not in place:
        return f"Unable to submit request because Thought signature is not valid.. {LEARN_MORE}"
    return "Invalid thought signature." if model.version >= (3, 7) else "Corrupted thought signature."


_TYPES = {
    "image": "png jpeg webp heic heif",
    "application": "pdf",
    "text": "plain",
    "audio": "wav mp3 mpeg aiff aac ogg flac opus webm",
    "video": "mp4 mpeg mov quicktime avi x-flv mpg webm wmv 3gpp",
}
KNOWN = frozenset(f"{kind}/{name}" for kind, names in _TYPES.items() for name in names.split())


def check_parts(response: dict[str, Any], where: str, model: Model, place: frozenset[str]) -> None:
    """Check the parts of a functionResponse, and the references to them. Raises ``Refused``."""
    parts = response.get("parts") or []
    if parts and not model.is_gemini_3:
        raise Refused("Multimodal function responses are not supported by this model.")
    names: list[str] = []
    for n, part in enumerate(parts):
        at = f"GenerateContentRequest.{where}.function_response.parts[{n}]"
        blob, file = part.get("inlineData"), part.get("fileData")
        if (blob is None) == (file is None):
            raise Refused(f"* {at}.data: required oneof field 'data' must have one initialized field\n")
        media = blob or file or {}
        if (kind := media.get("mimeType")) not in KNOWN:
            raise Refused(f"Unsupported MIME type: {kind}")
        if blob is not None and not decode_bytes(blob.get("data") or ""):
            raise Refused(f"* {at}.inline_data.data: must be base64 of at least one byte\n")
        if (name := media.get("displayName")) is not None:
            names.append(name)
    if len(set(names)) < len(names):
        raise Refused("Display names of the parts of a function response must be unique.")
    for name in _references(response.get("response")):
        if "vertex" not in place or name not in names:
            raise Refused(f"Function response references the part `{name}`, which it does not have.")


def _references(value: Any) -> Iterator[str]:
    """The display names that ``{"$ref": name}`` refers to."""
    if isinstance(value, list):
        for item in value:
            yield from _references(item)
    elif isinstance(value, dict):
        if value.keys() == {"$ref"} and isinstance(value["$ref"], str):
            yield value["$ref"]
        for item in value.values():
            yield from _references(item)
