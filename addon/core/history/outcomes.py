"""Results of calls with images, sounds and files.

An *outcome* is the content of a functionResponse besides its id and name: `response`, and `parts` if the result has
any. A part is `{"inlineData": {"mimeType": …, "data": base64}}`.
"""

import base64
from collections.abc import Sequence
from typing import Any

from addon.core.framing.documents import Document, get, objects
from addon.core.history.media import MEDIA_TYPES, decoded, described, media_type, response_of
from addon.core.model_names import Generation, is_before

FIRST_WITH_PARTS = (3, 0)
"""Earlier models refuse a request whose functionResponses have parts."""

_OMITTED = "omitted"


def outcome_of(result: Any, error: str | None, parts: Sequence[Document] = ()) -> Document:
    """The outcome of a call with this result, or with this error."""
    outcome: Document = {"response": response_of(result, error)}
    return {**outcome, "parts": list(parts)} if parts else outcome


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
    if (content := decoded(data)) is None:
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
