"""The store's contract about moving all records to another store (`store.moving`).

`store.base` states what applies to the whole contract.
"""

import abc
from typing import Final, Literal, NamedTuple

from store.models import CachedTools, Call, Response, Session, Turn, UndeliveredAnswer

Kind = Literal["sessions", "turns", "cached tools", "notes", "responses"]

KINDS: Final[tuple[Kind, ...]] = ("sessions", "turns", "cached tools", "notes", "responses")
"""In the order in which they are moved."""

PAGE: Final = 200
"""About the number of records that one `export` returns."""

HOUR: Final = 3600.0
"""Seconds. The resolution of the times of notes."""


class MovedTurn(NamedTuple):
    """A turn with its calls and keys."""

    turn: Turn
    calls: list[Call]
    keys: list[bytes]


class MovedNote(NamedTuple):
    """A key of a turn without calls. `noted`: in whole hours, as seconds."""

    session: str
    key: bytes
    noted: float
    chain: bytes


class MovedResponse(NamedTuple):
    """A response. `head`: the present head of its conversation, if it has one. `used_at`: when the last response was
    added to its thread."""

    response: Response
    head: str | None
    used_at: float
    undelivered: UndeliveredAnswer | None


type Moved = Session | MovedTurn | CachedTools | MovedNote | MovedResponse


class Exported(NamedTuple):
    """Some records of a kind. `bad`: the names of records that cannot be read. `after`: where the next ones begin;
    None: these are the last."""

    items: list[Moved]
    bad: list[str]
    after: str | None


class Exports(abc.ABC):
    @abc.abstractmethod
    async def export(self, kind: Kind, *, since: float, after: str | None = None) -> Exported:
        """The next records of this kind that were written at `since` or later, of all sessions; notes: `ttl` seconds
        earlier, by the end of their hour. Turns and responses of a session come in the order in which they were saved.
        Meaningful only while nobody writes."""

    @abc.abstractmethod
    async def restore_session(self, session: Session) -> None:
        """Write the session as it is, with its version. Event `session.updated`."""

    @abc.abstractmethod
    async def restore_head(self, session: str, name: str, response_id: str | None) -> None:
        """Make this response the head of the conversation; None: delete the conversation. Raises UnknownResponse."""

    @abc.abstractmethod
    async def begin_move(self, secret: bytes) -> None:
        """Take over another store's secret. It is used once the store has been opened again."""

    @abc.abstractmethod
    async def note_move(self, note: str) -> None:
        """Keep a note of how far a move to this store has come; empty: none is under way."""

    @abc.abstractmethod
    async def move_note(self) -> str:
        """The last note of `note_move`."""

    @abc.abstractmethod
    async def users(self) -> set[str]:
        """The other proxies that use the store now; none if opening it excludes others."""

    @abc.abstractmethod
    def steady(self) -> float:
        """The clock of leases."""
