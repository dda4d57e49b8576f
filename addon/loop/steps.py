"""The calls of one step under way, and the order among them: `after` names tools whose calls come first."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from addon.core.documents import Document


class Run(Protocol):
    """A call as it is run."""

    async def response(self) -> Document: ...

    async def outlives_its_loop(self) -> bool: ...


@dataclass(slots=True)
class Step:
    """Tasks by call id, in call order. `after`: the tools that each call waits for. `complete` is set when no more
    calls can come."""

    tasks: dict[str, asyncio.Task[Document]] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    after: dict[str, Collection[str]] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, call_id: str, name: str, after: Collection[str], run: Run) -> asyncio.Task[Document]:
        """Begin a call. Its order is known before its task is made: an event loop may begin a task at once."""
        self.names[call_id], self.after[call_id], self.runs[call_id] = name, after, run
        task = self.tasks[call_id] = asyncio.ensure_future(run.response())
        task.set_name(name)
        return task

    async def in_turn(self, call_id: str) -> None:
        """Wait until the calls that come before this one are over."""
        if not self.after[call_id]:
            return
        await self.complete.wait()  # a call that comes first may come later in the stream
        if first := self._before(call_id):
            await asyncio.wait(first)

    def _before(self, call_id: str) -> list[asyncio.Task[Document]]:
        """The calls of the step that come first. Tools that wait for each other go in the order of their calls."""
        ids = list(self.tasks)
        waits = {one: [other for other in ids if other != one and self.names[other] in self.after[one]] for one in ids}

        def waits_for_this(other: str) -> bool:
            seen, left = {other}, [other]
            while left:
                more = [one for one in waits[left.pop()] if one not in seen]
                seen.update(more)
                left += more
            return call_id in seen

        place = ids.index(call_id)
        return [self.tasks[one] for one in waits[call_id] if ids.index(one) < place or not waits_for_this(one)]
