"""Effects: what an answer machine tells its shell to store and to send to the client, in order.

If the store fails, the shell gets other effects from the machine and performs them instead of the rest.
"""

from typing import NamedTuple

from addon.core.answers.answer import CapturedCall
from addon.graft.exchange import Paused
from addon.graft.owners import InitialState
from store.models import Call, Turn


class Begin(NamedTuple):
    """Begin the client's answer: status 200, with the headers of the first upstream answer."""


class Show(NamedTuple):
    """Send the client these bytes, never b""."""

    data: bytes


class Refuse(NamedTuple):
    """Send the client, which has received nothing yet, an error. `own`: the error is the proxy's, Google-shaped JSON;
    otherwise the upstream's, with its headers."""

    status: int
    body: bytes
    own: bool = True


class Save(NamedTuple):
    """Store the turn so far, its new calls, and the keys that find it. `last`: the next bytes end the client's turn."""

    turn: Turn
    calls: list[Call]
    keys: list[bytes]
    last: bool


class Note(NamedTuple):
    """Note a turn without hidden parts under these keys. `chain` belongs to the first key."""

    keys: list[bytes]
    chain: bytes


class Pause(NamedTuple):
    """Keep the answer until the client asks for its rest with this token."""

    token: str
    paused: Paused


class Start(NamedTuple):
    """Begin each of these calls whose InitialState says so, while the answer continues. All are complete and stored.
    Some must wait for others in the list."""

    calls: tuple[tuple[CapturedCall, InitialState], ...]


class Wait(NamedTuple):
    """Wait for these calls of the step, and give their responses to the machine."""

    calls: tuple[CapturedCall, ...]


class Send(NamedTuple):
    """Send this request upstream, and feed the answer to the machine. `goes_on`: the request asks for the rest of the
    previous answer, and their calls belong to one step."""

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
