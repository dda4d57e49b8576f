"""What goes wrong with an answer, and what the client gets then.

The client never gets a hidden call: neither because the store fails, nor in bytes that cannot be read.
"""

from collections.abc import Iterator

from addon.graft.answer_state import AnswerState
from addon.graft.effects import Effect, Mistake, Warn
from addon.graft.exchange import STORE_FAILED
from addon.graft.hidden_calls import HiddenCalls
from addon.surfaces.base import Framing


class BadAnswer(Exception):
    """The answer of a later round is unusable, for example empty. The client got nothing of it, so a retry is safe."""


class AnswerErrors:
    """Ends an answer with an error, in the form that the client's answer has by then."""

    def __init__(self, state: AnswerState) -> None:
        self._state = state
        self._writer = state.writer
        self._hidden_calls = HiddenCalls(state.exchange)

    def fail(self, code: int, status: str, words: str) -> list[Effect]:
        """An error of the proxy's own. It goes out once the end is noted: the client may ask again as soon as it has
        it."""
        failure = self._writer.fail(code, status, words)
        return [self._state.end("error"), failure]

    def too_long(self, words: str) -> list[Effect]:
        """The answer is too long: the rest of it is not read."""
        return self.fail(502, "UNAVAILABLE", words)

    def unexpected(self, error: Exception) -> list[Effect]:
        words = f"{type(error).__name__} while the answer was captured"
        return [Mistake(error, passed=False), *self.fail(500, "INTERNAL", words)]

    def unreadable(self) -> Iterator[Effect]:
        """Refuse bytes that hold a call and cannot be read: the client must not see the call."""
        yield Warn("an answer with a call could not be read: the client was given an error")
        yield from self.fail(502, "UNAVAILABLE", "the model's answer holds a call and cannot be read")

    def may_not_go_out(self, data: bytes) -> bool:
        """Whether a piece of a stream holds a call that the client may not see."""
        return self._writer.streams and self._hidden_calls.are_in(data, self._writer.framing)

    def body_may_not_go_out(self, body: bytes) -> bool:
        """Whether an answer that is not a stream holds such a call."""
        return self._hidden_calls.are_in(body, Framing.JSON)

    def on_store_failure(self) -> list[Effect] | None:
        """The effects to perform instead of a failed Save and everything after it; None: go on, as the settings say. In
        neither case does the client get an unknown call: its turn is not found again, and nothing else is lost. A
        service that keeps the answer would refuse all that follows it, because nobody could answer its calls."""
        state = self._state
        state.has_unsaved = True
        state.journal.forget_ended()
        has_calls = bool(state.journal.steps) or any(one.captured for one in state.reading.candidates)
        if state.settings.on_store_error == "pass" and not (has_calls and state.wire.keeps_answer):
            return None
        return self.fail(503, "UNAVAILABLE", STORE_FAILED)

    def on_refusal(self, status: int, body: bytes) -> list[Effect]:
        """Handle an upstream status other than 200. The client receives it unchanged, or as an error event if its
        stream has begun. In a later round a status that is not an error is useless to the client, and becomes a 502."""
        if self._state.is_later_round and not 400 <= status < 600:
            return self.fail(502, "UNAVAILABLE", f"the model answered with status {status} in a tool loop")
        refusal = self._writer.refuse(status, body)
        return [self._state.end("refused"), refusal]
