"""Whether the client has the answer to a request, and what the same request is given where it has not.

What is kept counts for the retry as it is, in a conversation above all: it must not get the turn twice. An answer of
which nothing is kept is a loop's like any other, and goes on as that does.
"""

import logging

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from addon.core.framing.documents import Document
from addon.loop.runner import Runner
from store.base import Store, StoreUnavailable
from store.models import UndeliveredAnswer

logger = logging.getLogger("toolgraft")


class Handover:
    """Of one answer. `key` tells its request from every other; `proxy_id` None: nothing is kept for a retry. `runners`
    are the loops that make it."""

    def __init__(self, store: Store, session: str, key: bytes, proxy_id: str | None, window: float) -> None:
        self.runners: list[Runner] = []
        self._store = store
        self._session = session
        self._key = key
        self._proxy_id = proxy_id
        self._window = window
        self._response_id: str | None = None
        self._is_stored = False
        self._is_settled = False

    async def earlier_answer(self) -> Document | None:
        """The answer that the same request got shortly before, and that did not reach its client. Raises
        StoreUnavailable."""
        if self._proxy_id is None or not self._window:
            return None
        found = await self._store.take_answer(self._session, self._key, window=self._window, proxy_id=self._proxy_id)
        if found is None:
            return None
        self._response_id, answer = found
        logger.info("session %s: a request was sent again, and gets the answer that is kept", self._session)
        for turn_id in (await self._store.response(self._session, self._response_id)).turns:
            await self._store.delivered(self._session, turn_id)  # they go with it, and the same request after this anew
        await self._store.sync()  # it may be what failed
        return answer

    @property
    def turns(self) -> list[str]:
        """The turns of the ledger that the answer is made of."""
        return [turn_id for runner in self.runners for turn_id in runner.turns]

    def undelivered(self, answer: Document) -> UndeliveredAnswer | None:
        """The answer, to be kept with the response until its client has it."""
        return None if self._proxy_id is None else UndeliveredAnswer(self._key, self._proxy_id, answer)

    def stored(self, response_id: str) -> None:
        """The response is in the store, and with it what its tools have done."""
        self._is_stored = True
        if self._proxy_id is not None:
            self._response_id = response_id

    def withdrawn(self) -> None:
        """It is there no more: of its loops the same request has what they have done."""
        self._is_stored, self._response_id = False, None

    async def durable(self) -> None:
        """What was kept is on disk."""
        for runner in self.runners:
            await runner.handed_over()
        self.runners.clear()

    async def settle(self, *, whole: bool) -> None:
        """The client has all of the answer, or else never will have. What is said first counts. Never raises."""
        if self._is_settled:
            return
        self._is_settled = True
        for runner in self.runners:
            await runner.handed_over(whole or self._is_stored)
        if self._response_id is None:
            return
        note = self._store.handed_over if whole else self._store.not_handed_over
        try:
            await note(self._session, self._response_id)
        except StoreUnavailable as error:
            logger.warning("whether a client has its answer is not noted: %s", error)
        except Exception:
            logger.exception("whether a client has its answer could not be noted")


class HandoverResponse(Response):
    """An answer whose handover is settled once it was written, or cannot be."""

    def __init__(self, answer: Response, handover: Handover) -> None:
        super().__init__(status_code=answer.status_code)
        self._answer = answer
        self._handover = handover

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        whole = False

        async def noted(message: Message) -> None:
            nonlocal whole
            await send(message)
            whole = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self._answer(scope, receive, noted)
            if whole and "flushed" in scope:
                whole = await scope["flushed"]()
        except BaseException:
            whole = False
            raise
        finally:
            await self._handover.settle(whole=whole)
