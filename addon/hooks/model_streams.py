"""Stages for a model's stream: one captures the answer, the other copies it."""

import logging
from collections.abc import Iterable

from addon.core.framing.encoding import BadEncoding, Decompress, TooLong
from addon.graft.capture import Capture, note_answer
from addon.graft.exchange import Exchange
from addon.graft.grafter import Grafter
from addon.web import tasks
from store.base import run_now

logger = logging.getLogger("toolgraft")


class GraftedStream:
    """Captures the answer from a stream's bytes; b"" is the end. It never raises: an answer that cannot be read further
    ends with an error, because the rest may hold a call. `received` collects the decompressed bytes."""

    def __init__(self, capture: Capture, decompress: Decompress | None, received: bytearray | None = None) -> None:
        self.received = received
        self.capture = capture
        self.decompress = decompress or _unknown_encoding
        self.failed = False
        self._last = b""

    def is_over(self) -> bool:
        """Whether the client gets nothing more."""
        return not self._last and (self.failed or self.capture.machine.is_over)

    def has_last_words(self) -> bool:
        """Whether the answer was stopped, and the client has yet to get its end."""
        return bool(self._last)

    def stop(self) -> None:
        """End the answer at the next chunk, whatever it is."""
        if not self.is_over():
            self.failed = True
            self._last = self.capture.stop()

    def __call__(self, chunk: bytes) -> Iterable[bytes]:
        if self.failed or self.capture.machine.is_over:
            last, self._last = self._last, b""
            return [last] if last else []
        try:
            plain = self.decompress(chunk)
            if self.received is not None:
                self.received += plain
            out = self.capture.feed(plain) if plain else b""
            if not chunk:
                out += self.capture.finish()
        except TooLong as error:
            self.failed = True
            out = self.capture.fail(f"the model's answer is too long: {error} (graft_max_answer)")
        except BadEncoding as error:
            self.failed = True
            out = self.capture.fail(f"the model's answer cannot be decompressed: {error}")
        except Exception as error:
            logger.exception("an answer could not be read further")
            self.failed = True
            out = self.capture.fail(f"{type(error).__name__} while the answer was read")
        # an empty chunk would end a chunked body
        return [out] if out else []


class CopiedStream:
    """Passes a stream on as it arrives and copies it, decompressed if possible, to `received`. At the end, even a
    premature one, the turns of `noted` are noted."""

    def __init__(
        self, grafter: Grafter, noted: Exchange | None, content_type: str, decompress: Decompress | None
    ) -> None:
        self.received = bytearray()
        self._grafter = grafter
        self._noted = noted
        self._kind = content_type
        self._decompress = decompress
        self._stopped = False

    def stop(self) -> None:
        """Send the client nothing more."""
        self._stopped = True
        self._note_turns(whole=False)

    def _note_turns(self, *, whole: bool) -> None:
        if self._decompress is not None and self._noted is not None:
            note = note_answer(self._grafter, self._noted, self._kind, bytes(self.received), whole=whole)
            if self._grafter.store.suspends:
                tasks.spawn(note, name="a note of a streamed answer")
            else:
                run_now(note)

    def __call__(self, chunk: bytes) -> Iterable[bytes]:
        if self._stopped:
            return []
        if self._decompress is not None:
            try:
                self.received += self._decompress(chunk)
            except BadEncoding:
                self._note_turns(whole=False)  # the rest cannot be read
                self._decompress = None
        if not chunk:
            if self._noted is not None:
                self._noted.summary.keep_end(self.received)
            self._note_turns(whole=True)
        return [chunk] if chunk else []


def _unknown_encoding(chunk: bytes) -> bytes:
    raise BadEncoding("its content encoding is unknown; identity was requested")
