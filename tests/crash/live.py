"""A Live connection, which ends with the proxy: nothing is repeated."""

import asyncio
import threading
from contextlib import suppress

from websockets import WebSocketException

from tests.crash.actors import Asker, Question
from tests.crash.chats import TIMEOUT
from tests.crash.runs import result
from tests.lives import Live

_GONE = (WebSocketException, OSError, TimeoutError)


class LiveChat(Asker):
    """Checks that each response to the model is in the store, and that no call outlives its connection."""

    def play(self, stop: threading.Event) -> None:
        with suppress(*_GONE):
            asyncio.run(self._talk(stop))

    async def _talk(self, stop: threading.Event) -> None:
        """Exchange at least one question and answer."""
        async with asyncio.timeout(TIMEOUT), Live.open(f"{self.rig.proxy.url}/@{self.session}") as live:
            self.rig.trace.tick()
            while True:
                self.open = self.question()
                await live.say(self.open.text)
                answer = await live.turn()
                self.rig.trace.tick()
                self.note("answered")
                self.take(self.open, answer)
                if stop.is_set():
                    return

    def send(self, question: Question, *, is_retry: bool = False) -> str:
        raise NotImplementedError

    def keep(self, question: Question, answer: str) -> None: ...

    def insist(self) -> None:
        if self.open is not None:
            self.give_up(self.open)

    def recover(self) -> None:
        self.insist()
        records = {call["args"].get("mark"): call for call in self.records()}
        for mark, response in self.call_responses.items():
            if response == result(mark) and records.get(mark, {}).get("result") != response:
                self.broken("lost", f"{mark} was told as {response}, and is {records.get(mark)}")
        self.call_responses = {}
        over = threading.Event()
        over.set()
        try:
            asyncio.run(self._talk(over))
        except _GONE as error:
            self.broken("refused", f"the next connection: {error!r}")
        else:
            self.note("next connection")
