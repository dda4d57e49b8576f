"""Tracks whether an answer reached its client, and gives a retried request the stored answer if it did not.

A stored answer is repeated unchanged, because a conversation must not get the turn twice. If the answer was not stored,
the retry continues its loop as for any client.
"""

import logging
from functools import partial

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from addon.core.framing.documents import Document
from addon.gateway.items import without_input
from addon.graft.machine_shell import PATIENCE
from addon.graft.owners import Owners
from addon.loop.runner import Runner
from store.base import Store, StoreUnavailable, TakeOverUnknown
from store.models import UndeliveredAnswer

logger = logging.getLogger("toolgraft")


class Handover:
    """The handover of one answer. `key` identifies the request. If `owners` has no lease, nothing is stored for a
    retry. `runners`: the loops that produce the answer."""

    def __init__(self, store: Store, session: str, key: bytes, owners: Owners, window: float) -> None:
        self.runners: list[Runner] = []
        self._store = store
        self._session = session
        self._key = key
        self._owners = owners
        self._proxy_id = owners.proxy_id
        self._window = window
        self._response_id: str | None = None
        self._is_stored = False
        self._is_settled = False

    async def earlier_answer(self) -> Document | None:
        """The answer to an earlier attempt of this request that did not reach the client. Raises StoreUnavailable."""
        if self._proxy_id is None or not self._window:
            return None
        await self._owners.catch_up()
        try:
            found = await self._store.take_answer(
                self._session, self._key, window=self._window, proxy_id=self._proxy_id
            )
        except TakeOverUnknown as error:  # this process may have taken the answer, so that no retry finds it
            give_back = partial(self._store.mark_not_handed_over, self._session, error.taken)
            self._owners.late_writes.add(f"{error.taken} given back", give_back)
            await self._owners.late_writes.wait(PATIENCE)
            raise
        if found is None:
            return None
        self._response_id, answer = found  # after a failure from here on, another retry can take it
        self._owners.late_writes.forget(_key(self._response_id, whole=False))
        response = await self._store.response(self._session, self._response_id)
        if answer is None and (answer := response.document) is None:  # just deleted
            self._response_id = None
            return None
        logger.info("session %s: a request was sent again and gets the stored answer", self._session)
        for turn_id in response.turns:
            # Delivered with the answer: the next request like this one is new.
            await self._store.mark_delivered(self._session, turn_id)
        await self._store.sync()  # a failed sync may be why the answer did not reach the client
        return without_input(answer)

    @property
    def turns(self) -> list[str]:
        """The ledger turns of the answer."""
        return [turn_id for runner in self.runners for turn_id in runner.turns]

    @property
    def turn_id(self) -> str:
        """The id of the answer's turn in the ledger, or ""."""
        return next((runner.first_turn for runner in self.runners if runner.first_turn), "")

    def undelivered(self, answer: Document | None) -> UndeliveredAnswer | None:
        """The record that is stored with the response until the client has the answer. `answer` None: the response's
        document contains all of it."""
        return None if self._proxy_id is None else UndeliveredAnswer(self._key, self._proxy_id, answer)

    def mark_stored(self, response_id: str) -> None:
        """Note that the response is in the store, with the results of its tools."""
        self._is_stored = True
        if self._proxy_id is not None:
            self._response_id = response_id

    def mark_withdrawn(self) -> None:
        """Note that the response was removed again. A retry reuses the results of its loops."""
        self._is_stored, self._response_id = False, None

    async def mark_durable(self) -> None:
        """Note that the stored response is on disk."""
        for runner in self.runners:
            await runner.settle_handover()
        self.runners.clear()

    def begin_over(self) -> None:
        """Note that an attempt failed before anything of its answer was sent, and that another follows."""
        self._is_settled = False
        self.runners.clear()

    async def settle(self, *, whole: bool) -> None:
        """Note whether the client received the whole answer. Only the first call counts. Never raises."""
        if self._is_settled:
            return
        self._is_settled = True
        for runner in self.runners:
            await runner.settle_handover(whole or self._is_stored)
        if self._response_id is None:
            return
        mark = self._store.mark_handed_over if whole else self._store.mark_not_handed_over
        note = partial(mark, self._session, self._response_id)
        late_writes, key = self._owners.late_writes, _key(self._response_id, whole=whole)
        try:
            await note()
            if not whole:
                late_writes.remember(key, note)
        except StoreUnavailable as error:
            late_writes.add(key, note)
            logger.warning("whether a client received its answer is noted later: %s", error)
        except Exception:
            logger.exception("whether a client received its answer could not be noted")


def _key(response_id: str, *, whole: bool) -> str:
    return f"{response_id} handed over: {whole}"


class HandoverResponse(Response):
    """A response that settles its handover when it was written or has failed."""

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
            if whole and (flushed := scope.get("state", {}).get("flushed")):
                whole = await flushed()
        except BaseException:
            whole = False
            raise
        finally:
            await self._handover.settle(whole=whole)
