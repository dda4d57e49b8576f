"""The calls of one step under way, and the order among them: `after` names tools whose calls come first."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from addon.core.documents import Document


class Run(Protocol):
    """A call as it is run."""

    async def response(self) -> Document: ...

    async def outlives_its_loop(self) -> bool: ...


@dataclass(slots=True)
class RunningStep:
    """`names` by call id, in call order; `tasks` of those that were begun. `after`: the tools that each of these waits
    for. `others`: how the end is waited for of those that nobody begins here. `complete` is set when no more calls can
    come."""

    names: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, asyncio.Task[Document]] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    others: dict[str, Callable[[], Awaitable[object]]] = field(default_factory=dict)
    after: dict[str, Collection[str]] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, call_id: str, name: str, after: Collection[str], run: Run) -> asyncio.Task[Document]:
        """Begin a call. Its order is known before its task is made: an event loop may begin a task at once."""
        self.names[call_id], self.after[call_id], self.runs[call_id] = name, after, run
        task = self.tasks[call_id] = asyncio.ensure_future(run.response())
        task.set_name(name)
        return task

    def note(self, call_id: str, name: str, ended: Callable[[], Awaitable[object]]) -> None:
        """A call that is answered from elsewhere: others may come after it."""
        self.names[call_id], self.others[call_id] = name, ended

    async def in_turn(self, call_id: str) -> None:
        """Wait until the calls that come before this one are over."""
        if not self.after[call_id]:
            return
        await self.complete.wait()  # a call that comes first may come later in the stream
        for first in self._before(call_id):
            if (task := self.tasks.get(first)) is not None:
                await asyncio.wait({task})
            else:
                await self.others[first]()

    def _before(self, call_id: str) -> list[str]:
        """The calls of the step that come first. Tools that wait for each other go in the order of their calls."""
        ids = list(self.names)
        waits = {
            one: [other for other in ids if other != one and self.names[other] in self.after.get(one, ())]
            for one in ids
        }

        def waits_for_this(other: str) -> bool:
            seen, left = {other}, [other]
            while left:
                more = [one for one in waits[left.pop()] if one not in seen]
                seen.update(more)
                left += more
            return call_id in seen

        place = ids.index(call_id)
        return [one for one in waits[call_id] if ids.index(one) < place or not waits_for_this(one)]
