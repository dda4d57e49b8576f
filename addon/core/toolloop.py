"""The tool loop, without I/O: a generator that says what is to be done next, and is told how it went.

It yields `Send` and is sent a `Round`; it yields `RunTools` and is sent the responses, in call order. It returns an
`Ended`. The shell owns every wait, every byte and every clock.

The rules: at most `max_rounds` requests go upstream, not counting those for the rest of an answer. The last of them
forbids calls, so that the client always gets an answer. A mode that forces calls forces the first step only. A call
that the model got wrong is asked for once more, and then reported as what it is.
"""

import enum
from collections.abc import Generator, Sequence
from typing import NamedTuple

from addon.core.answer import CapturedCall
from addon.core.documents import Document

WRONG_CALLS = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"})


class Send(NamedTuple):
    """Send the client's request with these Contents after its own. `mode` replaces the function calling mode: "NONE"
    for the last request, "AUTO" for those after the first step, None to leave it as it is. `token`: the same request as
    before, for the rest of an answer that the service gives in pieces."""

    added: tuple[Document, ...]
    mode: str | None
    token: str | None = None


class RunTools(NamedTuple):
    """Run these calls; send the functionResponse parts, in the same order."""

    calls: tuple[CapturedCall, ...]


class Round(NamedTuple):
    """What came of a `Send`: the model's Content as it said it, its calls, whether they are all the proxy's to run
    (all grafted, each with an executor), and the finishReason. `token`: that was not all, the rest is asked for."""

    content: Document
    calls: tuple[CapturedCall, ...]
    runnable: bool
    finish: str | None
    token: str | None = None


class End(enum.Enum):
    ANSWERED = "the model answered without calls"
    DELIVERED = "the step is the client's, or waits for results from outside"
    FAILED = "the model got its calls wrong twice"


class Ended(NamedTuple):
    """`rounds` counts the requests that went upstream."""

    end: End
    rounds: int


Loop = Generator[Send | RunTools, Round | Sequence[Document], Ended]


def tool_loop(max_rounds: int, before: Sequence[Document] = (), rounds: int = 0, mode: str | None = None) -> Loop:
    """The loop of one request of the client's. `before` are the Contents that earlier `rounds` of it came to, where it
    goes on from there, and `mode` that of the last of them."""
    added = list(before)
    wrong_before = False
    mode = mode or ("AUTO" if before else None)
    for number in range(min(rounds, max_rounds - 1) + 1, max_rounds + 1):
        asked = Send(tuple(added), "NONE" if number == max_rounds else mode)
        reply = yield asked
        assert isinstance(reply, Round)
        while reply.token is not None:
            reply = yield asked._replace(token=reply.token)
            assert isinstance(reply, Round)
        if reply.finish in WRONG_CALLS:
            if wrong_before or number == max_rounds:
                return Ended(End.FAILED, number)
            wrong_before = True
            continue
        if not reply.calls:
            return Ended(End.ANSWERED, number)
        if not reply.runnable or number == max_rounds:
            return Ended(End.DELIVERED, number)
        responses = yield RunTools(reply.calls)
        assert not isinstance(responses, Round)
        added += [reply.content, {"role": "user", "parts": list(responses)}]
        mode = "AUTO"
    raise AssertionError("the last round always returns")
