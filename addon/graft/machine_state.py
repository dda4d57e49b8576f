"""The states of an answer in the making, and what its shell may do in each.

An event is a call of the method of that name of the answer machine. The machine refuses an event, and a step to another
state, that the table does not have: `ImpossibleEvent`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

type Event = Literal["start", "resume", "begin", "feed", "finish", "take_responses", "on_refusal", "fail", "close"]


class State(StrEnum):
    NEW = "new"  # nothing was requested; without a loop, the upstream's answer has not begun
    ASKING = "asking"  # a request is upstream
    READING = "reading"  # its answer arrives; the client has nothing of it, so the request can be sent again
    WRITING = "writing"  # the client has a part of this answer
    ENDING = "ending"  # the client has the end of its turn, but more may arrive
    CALLING = "calling"  # the calls of a step are waited for
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
"""By state and event, the states that an event leads to, directly or one after the other."""


class ImpossibleEvent(Exception):
    """A mistake of the machine's shell, or of the machine."""
