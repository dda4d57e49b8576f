"""Responses that are made in the background: clients poll them, follow their events, and cancel them.

While a response is made, its marker is in the store, so that all proxies of the store know it. If its proxy ends, the
response fails. Its events are in the memory of the process that makes it.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

from addon.core.dialects.responses.answer import sse
from addon.core.framing.documents import Document
from addon.gateway.handover import Handover
from addon.gateway.items import INPUT
from addon.gateway.response_turns import Events
from addon.gateway.streaming import counted, ending_problem
from addon.web import tasks
from addon.web.api import ApiContext
from addon.web.problems import Problem
from store.base import Store, StoreError, StoreUnavailable, UnknownResponse
from store.models import Response

logger = logging.getLogger("toolgraft")

KEEP_ALIVE = b": keep-alive\n\n"
LONGEST = 3600.0
"""Seconds that a response may take."""
MOST_RUNNING = 256
MOST_ENDED = 32
"""How many ended responses keep their events."""
MAX_EVENTS = 8 * 1024 * 1024
"""Bytes of events that one response keeps: the latest."""

_MARKER = "response.background"
_LOOK = 1.0
"""Seconds between two checks for a cancellation by another proxy."""
_PATIENCE = 30.0
"""Seconds to wait for the end of a cancelled response, and for a failing store to accept a final state."""
_WINDOW = 2 * LONGEST


class Run:
    """A response that this process makes or has made. `response`: its present state. `over` is set when the final state
    is in the store, or the store does not accept it. `is_kept`: the final state was stored; only the store knows
    whether it was deleted since."""

    def __init__(self, session: str, previous: str | None, response: Document) -> None:
        self.session = session
        self.previous = previous
        self.response = response
        self.cancelled, self.over = asyncio.Event(), asyncio.Event()
        self.is_kept = False
        self._events: list[bytes] = []
        self._size = self._gone = 0  # `_gone`: the number of events that are no longer kept
        self._news = asyncio.Event()

    @property
    def response_id(self) -> str:
        return str(self.response["id"])

    def take(self, events: Events) -> None:
        for event in events:
            data = sse(event)
            self._events.append(data)
            self._size += len(data)
            self.response = event.get("response", self.response)
        while self._size > MAX_EVENTS and len(self._events) > 1:
            self._size -= len(self._events.pop(0))
            self._gone += 1
        self.notify()

    def fail(self, message: str) -> None:
        self.response = failed(self.response, message)
        number = self._gone + len(self._events)
        self.take([{"type": "response.failed", "sequence_number": number, "response": self.response}])

    def notify(self) -> None:
        """Wake all followers of the events."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def follow(self, after: int = -1) -> AsyncGenerator[bytes]:
        """The events after this number, in the form that is sent, until the response is final."""
        place = after + 1
        while True:
            news = self._news
            if place < self._gone:
                raise RuntimeError("events that a client still needs are no longer kept")
            if pieces := self._events[place - self._gone :]:
                place += len(pieces)
                yield b"".join(pieces)
            elif self.over.is_set():
                return
            else:
                await news.wait()
                if place == self._gone + len(self._events) and not self.over.is_set():
                    yield KEEP_ALIVE

    def check_kept(self, after: int) -> None:
        """Raises Problem (400) if events after this number are missing."""
        last = self._gone + len(self._events) - 1
        if not self._gone - 1 <= after <= last:
            words = f"starting_after: is {after}; it must be from {self._gone - 1} to {last}, the events that are kept"
            raise Problem(400, words, field="starting_after")


class BackgroundResponses:
    """`proxy_id`: this proxy's; None if it has no lease."""

    def __init__(self, store: Store, proxy_id: Callable[[], str | None]) -> None:
        self.store = store
        self._proxy_id = proxy_id
        self._runs: OrderedDict[tuple[str, str], Run] = OrderedDict()

    def run(self, session: str, response_id: str) -> Run | None:
        """The run, if this process has made the response and still keeps its events."""
        return self._runs.get((session, response_id))

    def forget(self, session: str, response_id: str) -> None:
        """Drop the events of a response that was deleted."""
        self._runs.pop((session, response_id), None)

    async def begin(
        self,
        api: ApiContext,
        run: Run,
        first: Events,
        events: AsyncGenerator[Events],
        handover: Handover,
    ) -> None:
        """Make the response in the background. `first`: its first events. Raises Problem, StoreUnavailable."""
        try:
            if sum(not one.over.is_set() for one in self._runs.values()) >= MOST_RUNNING:
                raise Problem(429, f"{MOST_RUNNING} background responses are being made: wait until one has ended")
            run.take(first)
            marker = Response(
                response_id=_marker(run.response_id),
                session=run.session,
                document={"object": _MARKER, "response": run.response},
                created_at=self.store.clock(),
            )
            undelivered = handover.undelivered(failed(run.response, "the proxy that made the response has ended"))
            if undelivered is not None:
                undelivered = undelivered._replace(key=_key(run.response_id))
            await self.store.add_response(marker, undelivered=undelivered)
            await self.store.sync()
        except BaseException:
            await events.aclose()
            raise
        self._runs[run.session, run.response_id] = run
        tasks.spawn(self._make(api, run, events, handover), name=f"background {run.response_id}")

    async def response(self, session: str, response_id: str) -> Document | None:
        """The present state of a response that is or was made in the background, unless its final state was stored."""
        run = self.run(session, response_id)
        if run is not None and run.is_kept:
            return None
        if run is not None:
            if run.response["status"] != "in_progress":
                await run.over.wait()
            return run.response
        try:
            marker = await self.store.response(session, _marker(response_id))
        except UnknownResponse:
            return None
        response: Document = (marker.document or {}).get("response", {})
        if marker.document is None or response.get("id") != response_id:
            return None
        if (lost := await self._lost(marker, response)) is not None:
            await self._keep(session, None, lost)
            return lost
        return response

    async def _lost(self, marker: Response, response: Document) -> Document | None:
        """The failed response, if its proxy has ended."""
        if self.store.clock() - marker.created_at > _WINDOW:
            return failed(response, "nothing is known of the response any longer")
        if (proxy_id := self._proxy_id()) is None:
            return None
        key = _key(str(response["id"]))
        found = await self.store.take_answer(marker.session, key, window=_WINDOW, proxy_id=proxy_id, waits=False)
        return None if found is None else found[1]

    async def cancel(self, session: str, response_id: str) -> None:
        """Cancel a response, and wait for its end. Raises Problem (503) if it takes too long."""
        run = self.run(session, response_id)
        try:
            async with asyncio.timeout(_PATIENCE):
                if run is not None:
                    run.cancelled.set()
                    await run.over.wait()
                    return
                with suppress(UnknownResponse):  # it has just ended
                    await self.store.delete_response(session, _marker(response_id))
                    await self.store.sync()
                while not await self._is_kept(session, response_id):  # noqa: ASYNC110 - another process keeps it
                    await asyncio.sleep(_LOOK / 4)
        except TimeoutError:
            raise Problem(503, "the response is being cancelled: ask for it again") from None

    # --- one run ----------------------------------------------------------------------------------------------

    async def _make(self, api: ApiContext, run: Run, events: AsyncGenerator[Events], handover: Handover) -> None:
        async def consume() -> None:
            async with aclosing(events):
                async for more in events:
                    run.take(more)

        work = tasks.spawn(consume(), name="background events")
        ends = [
            tasks.spawn(api.ending.wait(), name="the end"),
            tasks.spawn(run.cancelled.wait(), name="a cancellation"),
            tasks.spawn(self._cancelled_elsewhere(run), name="cancelled"),
        ]
        with counted(api):
            try:
                await asyncio.wait({work, *ends}, timeout=LONGEST, return_when=asyncio.FIRST_COMPLETED)
                in_time = work.done() or any(end.done() for end in ends)
            finally:
                await tasks.cancel(*ends)
                work.cancel()
                await asyncio.wait({work})
            error = None if work.cancelled() else work.exception()
            if run.response["status"] == "in_progress":
                if run.cancelled.is_set():
                    run.response = {**run.response, "status": "cancelled"}
                elif not in_time:
                    run.fail(f"the response took longer than {LONGEST:g} s")
                else:
                    run.fail(str(ending_problem() if api.ending.is_set() else error or "the response was not stored"))
            await handover.settle(whole=run.response["status"] in ("completed", "incomplete"))
            await self._end(run)

    async def _cancelled_elsewhere(self, run: Run) -> None:
        """Returns when another proxy has deleted the marker."""
        while not run.cancelled.is_set():
            await asyncio.sleep(_LOOK)
            try:
                if (await self.store.response(run.session, _marker(run.response_id))).document is None:
                    run.cancelled.set()
            except UnknownResponse:
                run.cancelled.set()
            except StoreError:
                continue

    async def _end(self, run: Run) -> None:
        """Store the final state, as soon as the store accepts it."""
        try:
            async with asyncio.timeout(_PATIENCE):
                while True:
                    try:
                        await self._keep(run.session, run.previous, run.response)
                        run.is_kept = True
                        break
                    except StoreUnavailable:
                        await self.store.recovered(_LOOK)
        except Exception as error:
            logger.warning("the end of the background response %s is not noted: %s", run.response_id, error)
        run.over.set()
        run.notify()
        ended = [key for key, one in self._runs.items() if one.over.is_set()]
        for key in ended[: max(0, len(ended) - MOST_ENDED)]:
            del self._runs[key]

    async def _keep(self, session: str, previous: str | None, response: Document) -> None:
        """Store a final state, unless it was stored before, and delete the marker. `previous`: the response that this
        one continues. A response that continues this one gets its history from there."""
        response_id = str(response["id"])
        if not await self._is_kept(session, response_id):
            record = Response(
                response_id=response_id,
                session=session,
                previous=previous,
                document=response | {INPUT: []},
                created_at=self.store.clock(),
            )
            try:
                await self.store.add_response(record)
            except UnknownResponse:  # the previous response was deleted
                await self.store.add_response(record.model_copy(update={"previous": None}))
            await self.store.sync()
        with suppress(UnknownResponse):
            await self.store.delete_response(session, _marker(response_id))

    async def _is_kept(self, session: str, response_id: str) -> bool:
        try:
            return (await self.store.response(session, response_id)).document is not None
        except UnknownResponse:
            return False


def failed(response: Document, message: str) -> Document:
    return {**response, "status": "failed", "error": {"code": "server_error", "message": message}}


def _marker(response_id: str) -> str:
    return f"background_{response_id}"


def _key(response_id: str) -> bytes:
    """The key of the answer that replaces the response if its proxy ends."""
    return hashlib.blake2b(_marker(response_id).encode(), digest_size=16).digest()
