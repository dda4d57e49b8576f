"""Runs a session's tool for a person who tries it. Its call is stored, but belongs to no conversation."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from addon.core.answer import CapturedCall
from addon.core.framing.documents import Document
from addon.graft.exchange import new_call_id, new_turn_id
from addon.graft.session_config import SessionConfig
from addon.graft.turn_records import TRY, call_of
from addon.loop.bindings import Handler
from addon.loop.executors import OWNERS, Executors
from addon.loop.steps import RunningStep
from addon.surfaces.incoming import Framing, Operation, Target
from addon.web.problems import Problem
from store.models import Call, Owner, Slot, Step, Turn

_AT_ONCE = 8
"""The most trials that run in parallel; others wait."""
_TARGET = Target(TRY, Operation.GENERATE, Framing.JSON, "", (), ())


@dataclass(frozen=True, slots=True)
class _Source:
    """The source of the call's record: no model."""

    config: SessionConfig
    model: str = ""
    target: Target = _TARGET


class ToolTrials:
    """`config`: returns a session's configuration, None if it has no tools."""

    def __init__(self, executors: Executors, config: Callable[[str], Awaitable[SessionConfig | None]]) -> None:
        self._executors = executors
        self._config = config
        self._limit = asyncio.Semaphore(_AT_ONCE)

    async def begin(self, session: str, name: str, args: Document, check: Callable[[Owner], None]) -> Call:
        """Store a call of the tool, and run it by the tool's rules. `check` raises if the caller may not try calls of
        this owner. Raises Problem (404, 409, 422) and StoreError; then nothing is stored."""
        config = await self._config(session)
        if config is None or name not in config.toolbox.names:
            raise Problem(404, f"session {session} has no tool {name}", tool=name)
        binding = self._executors.binding(config, name)
        if binding.handler is Handler.NOBODY:
            words = f'{name} has no executor, so nobody runs it: give it an "executor", of the type http or worker'
            raise Problem(409, words, field="executor", tool=name)
        check(OWNERS[binding.handler])
        if problems := self._executors.problems(config, name, args):
            raise Problem(422, f"args: do not fit the parameters of {name}: {'; '.join(problems)}", field="args")
        return await self._begin(config, CapturedCall(new_call_id(), name, args, None, 0))

    async def _begin(self, config: SessionConfig, call: CapturedCall) -> Call:
        executors, store = self._executors, self._executors.store
        state = executors.initial_state(config, call, runs=True)
        turn = _turn_of(config.session, call, store.clock())
        record = call_of(_Source(config), turn.turn_id, call, state, now=turn.created_at)
        await store.save_turn(turn, [record])
        step = RunningStep()
        executors.start(config, call, state, step, self._limit, secrets.token_hex(8))
        step.complete.set()
        return record


def _turn_of(session: str, call: CapturedCall, now: float) -> Turn:
    """A turn for the call, because the store keeps no call without one. It has no keys, so no history finds it."""
    content = {"role": "model", "parts": [{"functionCall": {"name": call.name, "args": call.args}}]}
    return Turn(
        turn_id=new_turn_id(),
        session=session,
        visible=[],
        steps=[Step(content=content, slots=[Slot(name=call.name, call_id=call.call_id)])],
        delivery="loop",
        delivered=True,
        surface=TRY,
        created_at=now,
    )
