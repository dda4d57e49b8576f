"""Live connections: executes the decisions of `addon.core.live`. Stores and runs calls, and sends their results. The
owner of the connection feeds the frames. No call outlives its connection."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from functools import partial

from addon.core.answer import CapturedCall
from addon.core.arguments import Limits
from addon.core.framing.documents import Document, Malformed
from addon.core.history.outcomes import outcome_of
from addon.core.live import Frame, LiveActions, LiveMachine, LiveStep, ToolBehavior, TooMuchHeld
from addon.graft.exchange import STORE_FAILED, new_call_id, new_turn_id
from addon.graft.grafter import Grafter, GraftFailed
from addon.graft.owners import InitialState
from addon.graft.session_config import SessionConfig
from addon.graft.turn_records import call_of, live_turn_of
from addon.loop.executors import Executors
from addon.loop.steps import RunningStep
from addon.surfaces.incoming import Target
from store.base import AlreadyAnswered, Store, StoreError

logger = logging.getLogger("toolgraft")

_CLOSED = "cancelled: the connection has ended"
_CANCELLED = "cancelled: the model has taken the call back"


class LiveSession:
    """One connection. `send` sends a frame upstream; call `confirm_sent` after each. `loop_id` identifies the
    connection that waits for approvals."""

    def __init__(
        self,
        grafter: Grafter,
        executors: Executors,
        config: SessionConfig,
        target: Target,
        send: Callable[[Frame], None],
    ) -> None:
        self.grafter = grafter
        self.executors = executors
        self.config = config
        self.target = target
        self.loop_id = secrets.token_hex(8)
        self._send = send
        self._why = _CANCELLED  # the error of cancelled calls
        self._steps: dict[str, RunningStep] = {}
        self._limit = asyncio.Semaphore(config.parallel)
        self._tasks: set[asyncio.Task[None]] = set()
        self._storing: set[asyncio.Task[None]] = set()  # the tasks that still store and begin calls
        names = [str(declaration["name"]) for declaration in config.toolbox.declarations]
        self._live = LiveMachine(
            config.toolbox,
            {name: ToolBehavior(*executors.behavior(config, name)) for name in names},
            strips=config.strips,
            passthrough=config.delivery == "passthrough",
            new_call_id=new_call_id,
            limits=Limits(grafter.settings.max_calls, grafter.settings.max_args),
            max_held=grafter.settings.max_event,
        )

    @property
    def model(self) -> str:
        return self._live.model

    @property
    def store(self) -> Store:
        return self.grafter.store

    # --- frames -----------------------------------------------------------------------------------------------

    def from_client(self, frame: Frame) -> bytes | None:
        """The frame to send upstream instead, immediately; None: no frame. Raises GraftFailed if the graft fails,
        unless the settings pass the frame on unchanged. Raises TooMuchHeld."""
        try:
            return self._apply(self._live.from_client(frame))
        except Malformed as error:
            self.grafter.warn(f"a Live frame was passed on unchanged: {error}")
            self._live.record_unchanged(frame)
            return frame.data
        except TooMuchHeld:
            raise
        except Exception as error:
            failure = self.grafter.failed(error, "a Live frame could not be rewritten")
            if self.grafter.settings.on_store_error != "pass":
                raise failure from error
            self._live.record_unchanged(frame)
            return frame.data

    def from_server(self, frame: Frame) -> bytes | None:
        """The frame to send to the client instead; None: no frame. Raises GraftFailed for an unreadable frame that may
        hold a call."""
        try:
            return self._apply(self._live.from_server(frame))
        except Malformed:
            raise GraftFailed("a message of the model's may hold a call, and cannot be read") from None

    def confirm_sent(self) -> None:
        self._live.confirm_sent()

    def close(self) -> None:
        """End the connection: cancel the running calls, and send no more frames."""
        self._send, self._why = lambda frame: None, _CLOSED
        self._apply(self._live.close())

    async def wait_closed(self) -> None:
        """Wait until all tasks have ended, after `close`."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _apply(self, outcome: LiveActions) -> bytes | None:
        for frame in outcome.send:
            self._send(frame)
        if outcome.step is not None:
            task = self._spawn(self._run(outcome.step))
            self._storing.add(task)
            task.add_done_callback(self._storing.discard)
        if outcome.cancel:
            self._spawn(self._cancel(outcome.cancel))
        for call_id, response in outcome.results:
            self._spawn(self._store_client_result(call_id, response))
        return outcome.forward

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _wait_stored(self) -> None:
        """Wait until all calls so far are stored: a client may send results before that."""
        if self._storing:
            await asyncio.wait(set(self._storing))

    # --- calls ------------------------------------------------------------------------------------------------

    async def _run(self, live_step: LiveStep) -> None:
        """Store the calls and begin them. The client gives the results of passed-through calls."""
        now, turn_id = self.store.clock(), new_turn_id()
        try:
            turn = live_turn_of(self, turn_id, live_step, now=now)
            passthrough = self.config.delivery == "passthrough"
            initial_states = {call.call_id: self._initial_state(call) for call in live_step.calls}
            calls = [
                call_of(self, turn_id, call, initial_states[call.call_id], now=now, number=live_step.number)
                for call in live_step.calls
            ]
            await self.store.save_turn(turn, calls, [])
        except Exception as error:  # the model waits for a response, whatever the error
            self.grafter.metrics.error("store")
            logger.warning("the store failed, a Live call was not run: %s", error)
            for call in live_step.calls:
                self._send_response(call.call_id, outcome_of(None, f"the call could not be stored: {STORE_FAILED}"))
            return
        self.grafter.metrics.count_captured(len(live_step.calls))
        step = RunningStep()
        if live_step.number >= self.config.max_rounds and not passthrough:
            await self._refuse(live_step)
            return
        for call in live_step.calls:
            if passthrough or not self._live.waits_for(call.call_id):  # cancelled while it was being stored
                continue
            self._steps[call.call_id] = step
            self.executors.start(self.config, call, initial_states[call.call_id], step, self._limit, self.loop_id)
            step.tasks[call.call_id].add_done_callback(partial(self._call_ended, call.call_id))
        step.complete.set()

    def _initial_state(self, call: CapturedCall) -> InitialState:
        return self.executors.initial_state(self.config, call, runs=self.config.delivery != "passthrough")

    async def _refuse(self, live_step: LiveStep) -> None:
        """Run no more calls until the model's next turn: it calls tools repeatedly without answering."""
        error = f"called {live_step.number} times in one turn without an answer: answer with the results so far"
        for call in live_step.calls:
            await self._store_result(call.call_id, error=error)
            self._send_response(call.call_id, outcome_of(None, error))

    def _call_ended(self, call_id: str, task: asyncio.Task[Document]) -> None:
        self._steps.pop(call_id, None)
        if not task.cancelled():
            self._send_response(call_id, task.result())

    def _send_response(self, call_id: str, response: Document) -> None:
        self._apply(self._live.respond(call_id, response))

    async def _cancel(self, call_ids: tuple[str, ...]) -> None:
        await self._wait_stored()
        for call_id in call_ids:
            step = self._steps.pop(call_id, None)
            await self.executors.cancel_calls(self.config, step or RunningStep(), [call_id], self._why)

    async def _store_client_result(self, call_id: str, response: Document) -> None:
        """Store the client's result of a passed-through call."""
        await self._wait_stored()
        await self._store_result(call_id, result=response)

    async def _store_result(self, call_id: str, *, result: Document | None = None, error: str | None = None) -> None:
        """Store a result that does not come from a tool."""
        try:
            await self.store.answer(self.config.session, call_id, result=result, error=error)
        except AlreadyAnswered:
            pass
        except StoreError as failure:
            logger.warning("the result of a Live call was not stored: %s", failure)


class LiveSessions:
    def __init__(self) -> None:
        self._open: set[LiveSession] = set()
        self._ending: set[asyncio.Task[None]] = set()

    def add(self, session: LiveSession) -> None:
        self._open.add(session)

    def end(self, session: LiveSession) -> None:
        self._open.discard(session)
        session.close()
        task = asyncio.ensure_future(session.wait_closed())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        for session in list(self._open):
            self.end(session)
        if self._ending:
            await asyncio.wait(self._ending)
