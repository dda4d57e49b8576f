"""The states of the answer machine, and the events that are possible in each.

An event is a call of the machine's method with that name. The machine raises `ImpossibleEvent` for an event or a
transition that is not in the table.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

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
