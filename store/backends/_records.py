"""Reads and writes records as JSON, with a format version, and reads them leniently.

Records of older or newer models are read as far as possible: unknown fields are ignored, and invalid optional fields
count as never set, except for essential ones, such as whether a call is run, or a session's tools. Any other record is
unreadable: it is left out and logged once, and does not hide other records.
"""

import functools
import logging
from collections.abc import Iterable, Iterator

import pydantic_core
from pydantic import ValidationError

from store.models import Call, Record, Response, Session

logger = logging.getLogger(__name__)

VERSION = 1
"""The format version of records, stored in each as `v`; to be raised by changes that readers must know."""

_BEGIN = f'{{"v":{VERSION},'

_STRICT: dict[type[Record], set[str]] = {
    Call: {"status", "owner", "released", "redeliver", "approval"},
    Session: {"toolset", "policy", "version"},
    Response: {"previous", "conversation", "contents", "calls"},
}
"""Optional fields without which a record would mean something else."""

_MAX_LOGGED = 1000
"""The number of unreadable records that are logged."""

_SMALL = 4096
"""The size of records that are remembered, in characters."""

_REMEMBERED = 256
"""The number of small records that are remembered: a chat, or a list, is read more than once."""

_logged: set[int] = set()


def versioned(text: str) -> str:
    """A record's JSON as it is stored."""
    return _BEGIN + text[1:]


def read[R: Record](model: type[R], text: str, *, log: bool = True) -> R | None:
    """The record; None if it is unreadable. `log`: whether to log that."""
    try:
        return (_read_small if len(text) <= _SMALL else _read)(model, text)
    except ValidationError as error:
        record = _leniently(model, text, error)
        if record is None and log:
            _log(model, text, error)
        return record


def _read[R: Record](model: type[R], text: str) -> R:
    return model.model_validate_json(text, extra="ignore")


_read_small = functools.lru_cache(_REMEMBERED)(_read)


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


def _log(model: type[Record], text: str, error: ValidationError) -> None:
    if len(_logged) < _MAX_LOGGED and (digest := hash((model, text))) not in _logged:
        _logged.add(digest)
        where = ", ".join(".".join(map(str, one["loc"])) or "it" for one in error.errors()[:3])
        logger.warning("a %s of the store cannot be read and is left out: %s", model.__name__.lower(), where)
