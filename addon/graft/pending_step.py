"""The last step of a request's history, if calls lack answers: the request may wait for them."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from addon.core.history.steps import last_step
from addon.core.history.turns import History
from addon.graft.exchange import Abandoned
from addon.graft.ledger_search import Hits
from addon.graft.owners import Owners
from addon.graft.session_config import SessionConfig
from addon.graft.waiting import being_run, open_calls, until_one_changes
from store.base import Store
from store.models import Call

Hangup = Callable[[], Awaitable[object]]
"""Returns when the client has hung up."""


@dataclass(frozen=True, slots=True)
class PendingStep:
    """`look_up`: returns the current true turns of the history."""

    store: Store
    owners: Owners
    config: SessionConfig
    history: History
    look_up: Callable[[], Awaitable[Hits]]
    hangup: Hangup

    def is_pending(self, hits: Hits) -> bool:
        """Whether the last model turn is a step with an unanswered call."""
        last = last_step(self.history, hits, self.config.placeholder)
        return last is not None and bool(last.pending)

    async def wait_while_running(self, hits: Hits) -> Hits | Abandoned:
        """Wait until none of the calls is running, whatever the settings say about pending calls."""
        return await self.wait(hits, None)

    async def wait(self, hits: Hits, timeout: float | None) -> Hits | Abandoned:
        """Wait until all calls of the step have answers: up to `timeout` seconds, or with None while any of them
        runs."""
        clock = asyncio.get_running_loop().time
        deadline = None if timeout is None else clock() + timeout
        gone = asyncio.ensure_future(self.hangup())
        try:
            while calls := await self._waited_for(hits, only_running=timeout is None):
                seconds = None if deadline is None else deadline - clock()
                changed = (seconds is None or seconds > 0) and await until_one_changes(self.store, calls, gone, seconds)
                if gone.done():
                    return Abandoned()
                hits = await self.look_up()
                if not changed:
                    break
        finally:
            gone.cancel()
        return await self.look_up()  # a call may just have been settled

    async def _waited_for(self, hits: Hits, *, only_running: bool) -> list[Call]:
        last = last_step(self.history, hits, self.config.placeholder)
        if last is None or not last.pending:
            return []
        calls = await open_calls(self.store, self.config.session, last.pending)
        if not only_running:
            return calls
        return await being_run(self.store, calls, functools.partial(self.owners.comes_after, self.config))
