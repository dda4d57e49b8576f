"""The running calls of one step, and their order. `after` names the tools whose calls must end first."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from addon.core.framing.documents import Document

if TYPE_CHECKING:
    from addon.loop.call_run import CallRun


@dataclass(slots=True)
class RunningStep:
    """All dicts are by call id. `names`: the tools, in call order. `tasks`, `runs`: the calls begun here. `after`: the
    tools that each of them waits for. `external`: functions that wait for a call answered elsewhere. `complete` is set
    when no more calls can come."""

    names: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, asyncio.Task[Document]] = field(default_factory=dict)
    runs: "dict[str, CallRun]" = field(default_factory=dict)
    external: dict[str, Callable[[], Awaitable[object]]] = field(default_factory=dict)
    after: dict[str, Collection[str]] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, call_id: str, name: str, after: Collection[str], run: "CallRun") -> asyncio.Task[Document]:
        """Begin a call. Stores its order before creating its task, because an event loop may begin it immediately."""
        self.names[call_id], self.after[call_id], self.runs[call_id] = name, after, run
        task = self.tasks[call_id] = asyncio.ensure_future(run.response(self))
        task.set_name(name)
        return task

    def add_external(self, call_id: str, name: str, ended: Callable[[], Awaitable[object]]) -> None:
        """Note a call that is answered elsewhere: other calls may need to wait for it. `ended` waits for its end."""
        self.names[call_id], self.external[call_id] = name, ended

    async def wait_turn(self, call_id: str) -> None:
        """Wait until the calls that must come before this one have ended."""
        if not self.after[call_id]:
            return
        await self.complete.wait()  # a call that must run first may arrive later in the stream
        for first in self._predecessors(call_id):
            if (task := self.tasks.get(first)) is not None:
                await asyncio.wait({task})
            else:
                await self.external[first]()

    def _predecessors(self, call_id: str) -> list[str]:
        """The calls of the step that must end first. Tools that wait for each other run in call order."""
        ids = list(self.names)
        waits = {
            own: [other for other in ids if other != own and self.names[other] in self.after.get(own, ())]
            for own in ids
        }

        def waits_for_this(other: str) -> bool:
            visited, pending = {other}, [other]
            while pending:
                new = [found for found in waits[pending.pop()] if found not in visited]
                visited.update(new)
                pending += new
            return call_id in visited

        place = ids.index(call_id)
        return [other for other in waits[call_id] if ids.index(other) < place or not waits_for_this(other)]
