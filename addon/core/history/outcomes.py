"""Results of calls, with images, sounds and files.

An *outcome* is the content of a functionResponse besides its id and name: `response`, and `parts` if the result has
any. A part is `{"inlineData": {"mimeType": …, "data": base64}}`.
"""

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from typing import Any

from addon.core.framing.documents import Document, Malformed, decode, get, objects
from addon.core.model_names import Generation, is_before

FIRST_WITH_PARTS = (3, 0)
"""Earlier models refuse a request whose functionResponses have parts."""

_OMITTED = "omitted"


def outcome_of(result: Any, error: str | None, parts: Sequence[Document] = ()) -> Document:
    """The outcome of a call with this result, or with this error."""
    outcome: Document = {"response": response_of(result, error)}
    return {**outcome, "parts": list(parts)} if parts else outcome


def response_of(result: Any, error: str | None) -> Document:
    """A call's answer as a functionResponse's `response`, which must be an object: an object unchanged, a JSON object
    in a string parsed, any other value under `result`; an error under `error`."""
    if error is not None:
        return {"error": error}
    if isinstance(result, dict):
        return result
    if isinstance(result, str) and result.lstrip().startswith("{"):
        try:
            parsed = decode(result.encode("utf-8", "surrogatepass"))
        except Malformed:
            parsed = None
        if isinstance(parsed, dict):
            return parsed
    return {"result": result}


def outcome_in(response: Document) -> Document:
    """The outcome in a client's functionResponse, in this module's form. Other parts are left out."""
    outcome: Document = {"response": get(response, "response") or {}}
    parts = [made for part in objects(get(response, "parts")) if (made := _standard(part)) is not None]
    return {**outcome, "parts": parts} if parts else outcome


def _standard(part: Document) -> Document | None:
    """A part with its data in the usual alphabet of base64 (clients may use the URL-safe one); None without data."""
    blob = get(part, "inlineData")
    data = get(blob, "data") if isinstance(blob, dict) else None
    if not isinstance(data, str) or not (kind := media_type(part)):
        return None
    if (content := from_base64(data)) is None:
        return None
    return {"inlineData": {"mimeType": kind, "data": base64.b64encode(content).decode()}}


def fitted(outcome: Document, model: Generation) -> Document:
    """The outcome for a model of this version. `response` names the parts left out. The same object if there are
    none."""
    parts = outcome.get("parts")
    if not parts:
        return outcome
    is_early = is_before(model, FIRST_WITH_PARTS)
    taken = [] if is_early else [part for part in parts if media_type(part) in MEDIA_TYPES]
    if len(taken) == len(parts):
        return outcome
    reason = "this model takes no images or files in results" if is_early else "models do not take this type"
    left = [described(part) for part in parts if part not in taken]
    made: Document = {"response": with_omitted(outcome["response"], left, reason)}
    return {**made, "parts": taken} if taken else made


def with_omitted(response: Document, left: Sequence[str], reason: str) -> Document:
    """A response with a note about the parts that are missing, and the reason."""
    note = {_OMITTED: f"{', '.join(left)}: {reason}"}
    return {"result": response, **note} if _OMITTED in response else {**response, **note}


MEDIA_TYPES = frozenset(
    """application/pdf text/plain image/png image/jpeg image/webp image/heic image/heif audio/wav audio/mp3 audio/mpeg
    audio/aiff audio/aac audio/ogg audio/flac audio/opus audio/webm video/mp4 video/mpeg video/mov video/quicktime
    video/avi video/x-flv video/mpg video/webm video/wmv video/3gpp""".split()
)
"""The types that Gemini accepts. With any other, it would refuse the request and every later one of the chat."""


MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}/[a-z0-9][a-z0-9.+-]{0,63}")
"""For `fullmatch`, with the type in lower case."""


class BadPart(ValueError):
    """`field`: the position of the error, such as `parts[0].inlineData.data`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field} {message}")
        self.field = field


def read_parts(given: Any) -> list[Document]:
    """The `parts` that a tool, a worker or a person gives for a result, in the usual form. `data` may be in either
    alphabet of base64. Raises BadPart."""
    if not isinstance(given, list):
        raise BadPart("parts", 'must be a list of {"inlineData": {"mimeType": …, "data": …}}')
    return [_read_part(part, f"parts[{at}]") for at, part in enumerate(given)]


def _read_part(part: Any, at: str) -> Document:
    blob = get(part, "inlineData") if isinstance(part, dict) else None
    if not isinstance(blob, dict) or len(part) != 1:
        raise BadPart(at, 'must be {"inlineData": {"mimeType": …, "data": …}}')
    at += ".inlineData"
    kind, data = get(blob, "mimeType"), get(blob, "data")
    if others := [name for name in blob if name not in ("mimeType", "mime_type", "data")]:
        raise BadPart(f"{at}.{str(others[0])[:64]}", "is unknown; mimeType and data are needed")
    if not isinstance(kind, str) or not MEDIA_TYPE.fullmatch(kind.lower()):
        raise BadPart(f"{at}.mimeType", "must be a media type, such as image/png")
    content = from_base64(data) if isinstance(data, str) else None
    if not content:
        raise BadPart(f"{at}.data", "must be base64 of at least one byte")
    return {"inlineData": {"mimeType": kind.lower(), "data": base64.b64encode(content).decode()}}


def from_base64(data: str) -> bytes | None:
    """The bytes of base64 in either alphabet, with or without padding; None if it is not base64."""
    plain = data.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def redacted_parts(parts: Sequence[Document], redact: Callable[[bytes], bytes]) -> list[Document]:
    """The parts with secrets removed from their text by `redact`. Images and sounds are not searched."""
    return [_redacted(part, redact) if media_type(part).startswith("text/") else part for part in parts]


def _redacted(part: Document, redact: Callable[[bytes], bytes]) -> Document:
    text = base64.b64decode(part["inlineData"]["data"])
    data = base64.b64encode(redact(text)).decode()
    return {"inlineData": {"mimeType": media_type(part), "data": data}}


def reference(number: int, kind: str) -> str:
    """The text in a result that replaces the part with this number, counted from 1."""
    return f"[part {number}: {kind}]"


def size_of(part: Document) -> int:
    """The size in bytes of a part in the usual form."""
    data: str = part["inlineData"]["data"]
    return len(data) * 3 // 4 - data[-2:].count("=")


def media_type(part: Document) -> str:
    """The type of a part's `inlineData`; "" if there is none."""
    blob = get(part, "inlineData")
    return str(get(blob, "mimeType") or "") if isinstance(blob, dict) else ""


def described(part: Document) -> str:
    blob = get(part, "inlineData")
    if not isinstance(blob, dict) or not isinstance(get(blob, "data"), str):
        return "a file"
    return sized(media_type(part), size_of({"inlineData": blob}))


def sized(kind: str, size: int) -> str:
    return f"{kind} ({size} bytes)"
