"""Reads and writes records as JSON, with a format version.

Records of older or newer models are read leniently: unknown fields are ignored, and invalid optional fields count as
never set, except for essential ones, such as whether a call is run, or a session's tools. Any other record is
unreadable: it is left out and logged once, and does not hide other records.
"""

import base64
import binascii
import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec
import pydantic_core
from pydantic import ValidationError

from store.budget import Budget, Share
from store.models import Call, Document, Media, Record, Response, Session, Turn

logger = logging.getLogger(__name__)

VERSION = 1
"""The format version, stored in each record as `v`; raised by changes that readers must know."""

_BEGIN = f'{{"v":{VERSION},'

_STRICT: dict[type[Record], set[str]] = {
    Call: {"status", "owner", "released", "redeliver", "approval"},
    Session: {"toolset", "policy", "version"},
    Response: {"previous", "conversation", "contents", "calls"},
}
"""Optional fields that change the meaning of a record if they are missing."""

_MAX_LOGGED = 1000
"""The number of unreadable records that are logged."""

_SMALL = 4096
"""The most characters of a cached record."""

_logged: set[int] = set()


def memory_of(size: int) -> int:
    """The approximate memory use, in bytes, of a record with `size` characters of JSON."""
    return 512 + 3 * size


def _share(budget: Budget) -> Share[tuple[type[Record], str], Record]:
    return budget.share("records", 1 / 96)


_small = _share(Budget())
"""A cache of small records of this process's store, because chats and lists are read repeatedly."""


def remember_within(budget: Budget) -> None:
    """Cache small records within this budget."""
    global _small
    _small.clear()
    _small = _share(budget)


def versioned(text: str) -> str:
    """A record's JSON with the format version."""
    return _BEGIN + text[1:]


def remember(record: Record, text: str) -> None:
    """Cache the record of `text`. No other code may hold mutable parts of it."""
    if len(text) <= _SMALL:
        _small.put((type(record), text), record, len(text) + memory_of(len(text)))


def read[R: Record](model: type[R], text: str, *, log: bool = True) -> R | None:
    """The record; None if it is unreadable. `log`: whether to log that."""
    try:
        if len(text) > _SMALL:
            return model.model_validate_json(text, extra="ignore")
        known = _small.get((model, text))
        if known is None:
            known = model.model_validate_json(text, extra="ignore")
            remember(known, text)
        return cast(R, known)
    except ValidationError as error:
        record = _leniently(model, text, error)
        if record is None and log:
            _log(model, text, error)
        return record


class TurnState(msgspec.Struct):
    """The fields of a turn that a write to it needs."""

    created_at: float
    delivered: bool = False
    broke_off: float | None = None
    proxy_id: str | None = None


_state_of = msgspec.json.Decoder(TurnState).decode


def state_of(text: str) -> TurnState | Turn | None:
    """The state of a turn, read ten times faster than the whole record. None: the record is unreadable."""
    try:
        return _state_of(text)
    except msgspec.MsgspecError:
        return read(Turn, text)


def read_all[R: Record](model: type[R], texts: Iterable[str]) -> Iterator[R]:
    """The readable records."""
    return (record for text in texts if (record := read(model, text)) is not None)


def _leniently[R: Record](model: type[R], text: str, error: ValidationError) -> R | None:
    try:
        document = pydantic_core.from_json(text)
    except ValueError:
        return None
    strict = _STRICT.get(model, set())
    for name in {str(one["loc"][0]) for one in error.errors() if one["loc"]}:
        field = model.model_fields.get(name)
        if field is None or field.is_required() or name in strict:
            return None
        document.pop(name, None)
    try:
        return model.model_validate_json(pydantic_core.to_json(document), extra="ignore")
    except ValidationError:
        return None


def log_damaged(what: str, where: str) -> None:
    """Log, once, that an unreadable record is left out."""
    _log_once("%s of the store is damaged and is left out: %s", what, where, key=where)


def _log(model: type[Record], text: str, error: ValidationError) -> None:
    where = ", ".join(".".join(map(str, one["loc"])) or "it" for one in error.errors()[:3])
    _log_once("a %s of the store cannot be read and is left out: %s", model.__name__.lower(), where, key=text)


def _log_once(message: str, what: str, where: str, *, key: str) -> None:
    if len(_logged) < _MAX_LOGGED and (digest := hash((what, key))) not in _logged:
        _logged.add(digest)
        logger.warning(message, what, where)


def media_of(part: Document) -> Media:
    """Describes a part of a result. Raises ValueError unless it has a type and base64 in its `inlineData`."""
    blob: Any = part.get("inlineData")
    kind, data = (blob.get("mimeType"), blob.get("data")) if isinstance(blob, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(data, str):
        raise ValueError("a part of a result must have inlineData with mimeType and data")
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the data of a part of a result must be base64") from None
    digest = hashlib.blake2b(content, digest_size=16, key=hashlib.blake2b(kind.encode()).digest())
    return Media(mime_type=kind, size=len(content), digest=digest.hexdigest())


def parts_text(call: Call) -> str | None:
    """The parts of a call as JSON; None: no parts."""
    return pydantic_core.to_json(call.parts).decode() if call.parts else None


def with_parts(call: Call, text: str | bytes | None) -> Call:
    """The call with its stored parts, or unchanged if they are missing or damaged."""
    if not call.media or text is None:
        return call
    try:
        parts: list[Document] = pydantic_core.from_json(text)
    except ValueError:
        return call
    return call.model_copy(update={"parts": parts})


def size_of(calls: Sequence[Call]) -> int:
    """The approximate memory use of the parts of calls, in bytes."""
    return sum(2 * media.size for call in calls for media in call.media)


def document_text(document: Document | None) -> str:
    """A document as JSON. As in a record, NaN becomes null."""
    return pydantic_core.to_json(document, inf_nan_mode="null").decode()
