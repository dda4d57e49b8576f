"""How a shell and the answer machine talk: the machine's states, the events that are possible in each, and its effects.

An event is a call of the machine's method with that name. The machine raises `ImpossibleEvent` for an event or a
transition that is not in the table. It returns effects: what the shell must store and send to the client, in order. If
the store fails, the shell gets other effects from the machine and performs them instead of the rest.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, NamedTuple

from addon.core.answer import CapturedCall
from addon.graft.exchange import Paused
from addon.graft.owners import InitialState
from store.models import Call, Turn

type Event = Literal["start", "resume", "begin", "feed", "finish", "take_responses", "on_refusal", "fail", "close"]


class State(StrEnum):
    NEW = "new"  # no request was sent; without a loop, the upstream's answer has not begun
    ASKING = "asking"  # a request was sent upstream
    READING = "reading"  # its answer arrives; the client has received nothing of it, so the request can be sent again
    WRITING = "writing"  # the client has received a part of this answer
    ENDING = "ending"  # the client has received the end of its turn, but more may arrive
    CALLING = "calling"  # the answer waits for the calls of a step
    OVER = "over"  # the client's answer has ended, or nobody waits for it


NEW, ASKING, READING, WRITING, ENDING, CALLING, OVER = State

_ALWAYS: Mapping[Event, tuple[State, ...]] = {"fail": (OVER,), "close": (OVER,)}

TABLE: Mapping[State, Mapping[Event, tuple[State, ...]]] = {
    NEW: {"start": (ASKING,), "resume": (NEW, ASKING, CALLING), "begin": (READING,), **_ALWAYS},
    ASKING: {"begin": (READING,), "on_refusal": (OVER,), **_ALWAYS},
    READING: {
        "begin": (READING,),
        "feed": (READING, WRITING, ENDING, OVER),
        "finish": (READING, WRITING, ENDING, ASKING, CALLING, OVER),
        "on_refusal": (OVER,),
        **_ALWAYS,
    },
    WRITING: {
        "feed": (WRITING, ENDING, OVER),
        "finish": (WRITING, ENDING, ASKING, CALLING, OVER),
        **_ALWAYS,
    },
    ENDING: {
        "feed": (WRITING, ENDING, OVER),
        "finish": (WRITING, ENDING, ASKING, CALLING, OVER),
        **_ALWAYS,
    },
    CALLING: {"take_responses": (ASKING, OVER), **_ALWAYS},
    OVER: {"feed": (OVER,), "finish": (OVER,), **_ALWAYS},
}
"""By state and event: the states that an event leads to, directly or through another in the list."""


class ImpossibleEvent(Exception):
    """An event or transition outside the table: a bug in the shell or in the machine."""


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
