"""The rules of the tool loop, without I/O: what the next request may be, and what follows its answer.

At most `max_rounds` requests go upstream, not counting those for the rest of an answer. The last request forbids calls,
so that the client always gets an answer. A mode that forces calls applies only to the first step. After `max_calls`
calls in the loop, the model may make no more. A malformed call is requested once more, and then reported as an error.
"""

import enum
from collections.abc import Sequence

from addon.core.framing.documents import Document
from addon.core.history.calls import calls_in

WRONG_CALLS = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"})


class Next(enum.StrEnum):
    """The next action after a round. The loop continues with `SEND` or `RUN`, and otherwise ends."""

    SEND = "send"  # another request
    RUN = "run"  # run the calls, and give their responses to `add_step`
    ANSWERED = "answered"  # the model answered without calls
    DELIVERED = "delivered"  # the step is the client's, or waits for external results
    FAILED = "failed"  # the model got its calls wrong twice


class ToolLoop:
    """The loop of one client request. `number` counts the requests. `added`: the Contents of the loop so far, which
    follow the request's own. `mode`: the current function calling mode, "NONE" for the last request, "AUTO" after the
    first step, None for the client's own."""

    def __init__(
        self,
        max_rounds: int,
        max_calls: int | None = None,
        added: Sequence[Document] = (),
        rounds: int = 0,
        mode: str | None = None,
    ) -> None:
        """A loop that continues gets the Contents of its earlier `rounds` in `added`."""
        self.number = min(rounds, max_rounds - 1)
        self.added = tuple(added)
        self.mode = mode or ("AUTO" if added else None)
        self.had_wrong_calls = False
        self._max_rounds = max_rounds
        self._max_calls = max_calls
        self._calls = sum(len(calls_in([content])) for content in added if content.get("role") == "model")

    @property
    def is_last(self) -> bool:
        """Whether the current request may not lead to calls."""
        return self.number == self._max_rounds or (self._max_calls is not None and self._calls >= self._max_calls)

    def begin_round(self) -> None:
        self.number += 1
        if self.is_last:
            self.mode = "NONE"

    def after(self, calls: int, *, runnable: bool, wrong: bool) -> Next:
        """The next action after a round with so many calls. `runnable`: the proxy can run all of them. `wrong`: the
        model made invalid calls (`WRONG_CALLS`)."""
        if wrong:
            if self.had_wrong_calls or self.is_last:
                return Next.FAILED
            self.had_wrong_calls = True
            return Next.SEND
        if not calls:
            return Next.ANSWERED
        return Next.DELIVERED if not runnable or self.is_last else Next.RUN

    def add_step(self, content: Document, responses: Sequence[Document]) -> None:
        """Add the model's Content and the functionResponse parts for its calls, in the same order."""
        self._calls += len(responses)
        self.added += (content, {"role": "user", "parts": list(responses)})
        self.mode = "AUTO"
