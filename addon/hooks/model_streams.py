"""What mitmproxy hands the bytes of a model's stream to: a stage that captures the answer, and one that copies it."""

import logging
from collections.abc import Iterable

from addon.core.framing.encoding import BadEncoding, Decompress, TooLong
from addon.graft.capture import Capture, note_answer
from addon.graft.exchange import Exchange
from addon.graft.grafter import Grafter
from store.base import run_now

logger = logging.getLogger("toolgraft")


class GraftedStream:
    """The callable that mitmproxy hands the bytes of a stream to; b"" is the end. It never raises: an answer that
    cannot be read on ends with an error, since what comes may be a call. `received` gathers what came."""

    def __init__(self, capture: Capture, decompress: Decompress | None, received: bytearray | None = None) -> None:
        self.received = received
        self.capture = capture
        self.decompress = decompress or _unknown_encoding
        self.failed = False
        self._last = b""

    def is_over(self) -> bool:
        """Whether the client gets no more, whatever comes."""
        return not self._last and (self.failed or self.capture.machine.is_over)

    def stop(self) -> None:
        """End the answer with the next bytes that come, whatever they are."""
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
            logger.exception("an answer could not be read on")
            self.failed = True
            out = self.capture.fail(f"{type(error).__name__} while the answer was read")
        # an empty chunk would end a chunked body
        return [out] if out else []


class CopiedStream:
    """Passes a stream on as it arrives and copies it, decompressed if it can be, to `received`. At its end the turns of
    `noted` are noted, also where it ends too early."""

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
        """Nothing more is the client's."""
        self._stopped = True
        self._listen(whole=False)

    def _listen(self, *, whole: bool) -> None:
        if self._decompress is not None and self._noted is not None:
            run_now(note_answer(self._grafter, self._noted, self._kind, bytes(self.received), whole=whole))

    def __call__(self, chunk: bytes) -> Iterable[bytes]:
        if self._stopped:
            return []
        if self._decompress is not None:
            try:
                self.received += self._decompress(chunk)
            except BadEncoding:
                self._listen(whole=False)  # of the rest nobody knows what it says
                self._decompress = None
        if not chunk:
            self._listen(whole=True)
        return [chunk] if chunk else []


def _unknown_encoding(chunk: bytes) -> bytes:
    raise BadEncoding("its content encoding is not known; identity was asked for")
