"""Methods of mitmproxy's by shorter ways to the same result: the types of a new message's fields are checked one by one
only where one is not the very type that is asked for, and the names of a hook's fields are looked up once.

They are methods of classes, and so are replaced for every mitmproxy in the process, as long as one of them wants it. A
method stays where its source is not what the replacement was written for."""

from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from operator import attrgetter, contains
from typing import Any, NamedTuple, get_args

from mitmproxy.hooks import Hook
from mitmproxy.http import MessageData, RequestData, ResponseData
from mitmproxy.utils.typecheck import check_option_type

from addon.hooks.written_for import source_hash


class Shortcut:
    """A method of a class, and the one that takes its place. `used`: functions that the method calls, and that are not
    called any more."""

    def __init__(self, owner: type, name: str, shorter: Callable[..., Any], written_for: str, *used: Any) -> None:
        self.owner = owner
        self.name = name
        self._method = vars(owner).get(name)
        self._shorter = shorter
        self._written_for = written_for
        self._used = used
        self._users = 0

    def __str__(self) -> str:
        return f"{self.owner.__name__}.{self.name}"

    def take(self) -> bool:
        """False where the method stays."""
        if not self._users:
            if self._method is None or source_hash(getattr(self.owner, self.name), *self._used) != self._written_for:
                return False
            setattr(self.owner, self.name, self._shorter)
        self._users += 1
        return True

    def release(self) -> None:
        self._users -= 1
        if not self._users and vars(self.owner)[self.name] is self._shorter:  # a script may have put its own there
            setattr(self.owner, self.name, self._method)


class _Fields(NamedTuple):
    """The fields of a kind of message: what gives their values, and the types that each may have."""

    values: Callable[[MessageData], tuple[Any, ...]]
    types: tuple[frozenset[Any], ...]

    @classmethod
    def of(cls, kind: type[MessageData]) -> "_Fields":
        types = [frozenset(get_args(field.type) or [field.type]) for field in fields(kind)]
        return cls(attrgetter(*(field.name for field in fields(kind))), tuple(types))


_FIELDS: dict[type[MessageData], _Fields] = {kind: _Fields.of(kind) for kind in (RequestData, ResponseData)}
_check_each = vars(MessageData).get("__post_init__", lambda message: None)  # there is none with `python -O`


def check(self: MessageData) -> None:
    found = _FIELDS.get(type(self))
    if found is None or not all(map(contains, found.types, map(type, found.values(self)))):
        _check_each(self)  # which takes instances of subclasses as well


def args(self: Hook) -> list[Any]:
    return [getattr(self, name) for name in _names(type(self))]  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def _names(kind: type[Hook]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))  # type: ignore[arg-type]


SHORTCUTS = (
    Shortcut(MessageData, "__post_init__", check, "1c1e5e4297f5bb5a", check_option_type),
    Shortcut(Hook, "args", args, "5bab95f7aa358e18"),
)
