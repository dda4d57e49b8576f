"""Records as text: written with the version of their form, and read leniently.

What an older or a newer model wrote is read as far as it can be: fields that nobody knows are left out, and optional
ones that do not fit are as if they were never set, but for those that it would not be the same record without: whether
a call is run, a session's tools. What is left is a record that cannot be read. It hides no other, and is told of once.
"""

import logging
from collections.abc import Iterable, Iterator

import pydantic_core
from pydantic import ValidationError

from store.models import Call, Record, Response, Session

logger = logging.getLogger(__name__)

VERSION = 1
"""Of the records' form; to be raised with a change that a reader has to know of. Stands in each as `v`."""

_BEGIN = f'{{"v":{VERSION},'

_STRICT: dict[type[Record], set[str]] = {
    Call: {"status", "owner", "released", "redeliver", "approval"},
    Session: {"toolset", "policy", "version"},
    Response: {"previous", "conversation", "contents", "calls"},
}
"""Optional fields without which a record would say something else."""

_TOLD = 1000
"""Of how many records it is remembered that they were told of."""

_told: set[int] = set()


def versioned(text: str) -> str:
    """A record's JSON, as it is kept."""
    return _BEGIN + text[1:]


def read[R: Record](model: type[R], text: str, *, tell: bool = True) -> R | None:
    """The record, or None where it cannot be read; the log is told so, or not."""
    try:
        return model.model_validate_json(text, extra="ignore")
    except ValidationError as error:
        record = _leniently(model, text, error)
        if record is None and tell:
            _tell(model, text, error)
        return record


def read_all[R: Record](model: type[R], texts: Iterable[str]) -> Iterator[R]:
    """Those that can be read."""
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


def _tell(model: type[Record], text: str, error: ValidationError) -> None:
    if len(_told) < _TOLD and (told := hash((model, text))) not in _told:
        _told.add(told)
        where = ", ".join(".".join(map(str, one["loc"])) or "it" for one in error.errors()[:3])
        logger.warning("a %s of the store cannot be read and is left out: %s", model.__name__.lower(), where)
