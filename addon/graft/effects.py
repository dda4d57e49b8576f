"""What an answer machine asks of its shell, in order: what the client gets, and what is stored before that goes out.

A shell that cannot do one of them (the store fails) tells the machine, and does what it says instead of the rest.
"""

from typing import NamedTuple

from addon.core.answers.answer import CapturedCall
from addon.graft.exchange import Paused
from addon.graft.owners import Birth
from store.models import Call, Turn


class Begin(NamedTuple):
    """The answer begins: status 200, with the headers of the upstream's first answer."""


class Show(NamedTuple):
    """The client gets these bytes, never b""."""

    data: bytes


class Refuse(NamedTuple):
    """Nothing was shown, and the client gets an error instead. `own`: it is the proxy's, and Google-shaped JSON; else
    the upstream's, whose headers it keeps."""

    status: int
    body: bytes
    own: bool = True


class Save(NamedTuple):
    """Store the turn as far as it has come, with the calls that are new and the keys by which it is found. `last`: the
    client's turn ends with what is shown next."""

    turn: Turn
    calls: list[Call]
    keys: list[bytes]
    last: bool


class Note(NamedTuple):
    """Note a turn in which nothing was hidden by its keys, and the chain that goes with the first of them."""

    keys: list[bytes]
    chain: bytes


class Pause(NamedTuple):
    """Keep the answer until the client asks for the rest of it by this token."""

    token: str
    paused: Paused


class Start(NamedTuple):
    """These calls are complete and stored: begin those that begin, while the answer goes on. They may come after the
    others."""

    calls: tuple[tuple[CapturedCall, Birth], ...]


class Wait(NamedTuple):
    """Wait for these calls of the step; the machine is told their responses."""

    calls: tuple[CapturedCall, ...]


class Send(NamedTuple):
    """Send this request upstream; the machine is fed the answer. `goes_on`: it asks for the rest of the answer before,
    whose calls belong to the same step."""

    body: bytes
    goes_on: bool = False


class End(NamedTuple):
    """The answer is over. `outcome`: `answered`, `delivered` (the step is the client's), `failed` (the model got its
    calls wrong twice), `cut` (by an error of the upstream's in a stream) or `error` (of the proxy's own)."""

    outcome: str


class Warn(NamedTuple):
    text: str


class Mistake(NamedTuple):
    """An unexpected error. `passed`: the document it concerns was passed on unchanged and unread."""

    error: Exception
    passed: bool


Effect = Begin | Show | Refuse | Save | Note | Pause | Start | Wait | Send | End | Warn | Mistake
