"""The tool loop, without I/O: a generator that yields the next action and receives its result.

It yields `Send` and receives a `Round`; it yields `RunTools` and receives the responses, in call order. It returns an
`Ended`. All waiting, I/O and clocks are in the shell.

The rules: at most `max_rounds` requests go upstream, not counting those for the rest of an answer. The last request
forbids calls, so that the client always gets an answer. A mode that forces calls applies only to the first step. A
malformed call is requested once more, and then reported as an error.
"""

import enum
from collections.abc import Generator, Sequence
from typing import NamedTuple

from addon.core.answers.answer import CapturedCall
from addon.core.framing.documents import Document
from addon.core.history.calls import calls_in

WRONG_CALLS = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"})


class Send(NamedTuple):
    """Send the client's request with these Contents after its own. `mode`: the new function calling mode, "NONE" for
    the last request, "AUTO" after the first step, None for no change. `token`: repeat the previous request for the rest
    of an answer that the service sends in pieces."""

    added: tuple[Document, ...]
    mode: str | None
    token: str | None = None


class RunTools(NamedTuple):
    """Run these calls; send the functionResponse parts, in the same order."""

    calls: tuple[CapturedCall, ...]


class Round(NamedTuple):
    """The result of a `Send`. `content`: the model's Content, unchanged. `runnable`: whether the proxy can run all
    calls (all grafted, each with an executor). `finish`: the finishReason. `token`: set if the answer has a rest to
    request."""

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


def tool_loop(
    max_rounds: int,
    before: Sequence[Document] = (),
    rounds: int = 0,
    mode: str | None = None,
    max_calls: int | None = None,
) -> Loop:
    """The loop of one client request. A loop that continues gets the Contents of its earlier `rounds` in `before`, and
    the function calling mode of the last one in `mode`. Once the loop has had `max_calls` calls, the model may make no
    more."""
    added = list(before)
    calls = sum(len(calls_in([content])) for content in before if content.get("role") == "model")
    wrong_before = False
    mode = mode or ("AUTO" if before else None)
    for number in range(min(rounds, max_rounds - 1) + 1, max_rounds + 1):
        is_last = number == max_rounds or (max_calls is not None and calls >= max_calls)
        asked = Send(tuple(added), "NONE" if is_last else mode)
        reply = yield asked
        assert isinstance(reply, Round)
        while reply.token is not None:
            reply = yield asked._replace(token=reply.token)
            assert isinstance(reply, Round)
        if reply.finish in WRONG_CALLS:
            if wrong_before or is_last:
                return Ended(End.FAILED, number)
            wrong_before = True
            continue
        if not reply.calls:
            return Ended(End.ANSWERED, number)
        if not reply.runnable or is_last:
            return Ended(End.DELIVERED, number)
        responses = yield RunTools(reply.calls)
        assert not isinstance(responses, Round)
        calls += len(reply.calls)
        added += [reply.content, {"role": "user", "parts": list(responses)}]
        mode = "AUTO"
    raise AssertionError("the last round always returns")
