"""What an answer machine asks of its shell, in order: what the client gets, and what is stored before that goes out.

If the store fails, the shell asks the machine for other effects, and performs them instead of the rest.
"""

from typing import NamedTuple

from addon.core.answers.answer import CapturedCall
from addon.graft.exchange import Paused
from addon.graft.owners import InitialState
from store.models import Call, Turn


class Begin(NamedTuple):
    """The answer begins: status 200, with the headers of the upstream's first answer."""


class Show(NamedTuple):
    """The client gets these bytes, never b""."""

    data: bytes


class Refuse(NamedTuple):
    """The client has got nothing yet, and gets an error. `own`: the error is the proxy's, Google-shaped JSON; otherwise
    the upstream's, with its headers."""

    status: int
    body: bytes
    own: bool = True


class Save(NamedTuple):
    """Store the turn so far, with its new calls and the keys by which it is found. `last`: the client's turn ends with
    the next bytes."""

    turn: Turn
    calls: list[Call]
    keys: list[bytes]
    last: bool


class Note(NamedTuple):
    """Note a turn that hides nothing, by its keys and the chain that belongs to the first key."""

    keys: list[bytes]
    chain: bytes


class Pause(NamedTuple):
    """Keep the answer until the client asks for its rest with this token."""

    token: str
    paused: Paused


class Start(NamedTuple):
    """These calls are complete and stored. Begin each call whose InitialState says so, while the answer goes on; some
    wait for others of these."""

    calls: tuple[tuple[CapturedCall, InitialState], ...]


class Wait(NamedTuple):
    """Wait for these calls of the step, and give the machine their responses."""

    calls: tuple[CapturedCall, ...]


class Send(NamedTuple):
    """Send this request upstream, and feed the machine the answer. `goes_on`: the request asks for the rest of the
    answer before, whose calls belong to the same step."""

    body: bytes
    goes_on: bool = False


class End(NamedTuple):
    """The answer is over. `outcome`: `answered`, `delivered` (the client gets the step), `failed` (the model made
    invalid calls twice), `cut` (by an upstream error in a stream) or `error` (the proxy's own)."""

    outcome: str


class Warn(NamedTuple):
    text: str


class Mistake(NamedTuple):
    """An unexpected error. `passed`: the document was passed on unchanged and unread."""

    error: Exception
    passed: bool


Effect = Begin | Show | Refuse | Save | Note | Pause | Start | Wait | Send | End | Warn | Mistake
