"""Several sources as one, and prefixes."""

import asyncio
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from addon.loop.executors import Executors
from addon.tools.base import SourceError, Tool, ToolError, ToolSource
from addon.tools.combined import Combined, prefixed
from store.backends.memory import MemoryStore
from tests.tools.conftest import Until

pytestmark = pytest.mark.usefixtures("eager")


async def test_a_call_goes_to_the_source_of_its_tool(fixed: Any) -> None:
    one, two = fixed("one", "a"), fixed("two", "b")
    async with Combined([one, two]) as tools:
        assert [tool.name for tool in await tools.list_tools()] == ["a", "b"]
        assert await tools.call("b", {"x": 1}, call_id="c1") == "two"
        assert two.calls == [("b", {"x": 1}, "c1")]
        with pytest.raises(ToolError, match="there is no tool 'z'"):
            await tools.call("z", {}, call_id="c2")
    assert (one.closed, two.closed) == (1, 1)


async def test_no_sources_are_no_tools() -> None:
    async with Combined([]) as tools:
        assert await tools.list_tools() == []


async def test_names_that_clash_are_an_error_that_names_both_sources(fixed: Any) -> None:
    one, two = fixed("one.py", "a"), fixed("two.py", "a")
    with pytest.raises(SourceError, match=r"'a'.* one\.py .*two\.py"):
        await Combined([one, two]).__aenter__()
    assert (one.closed, two.closed) == (1, 1)


async def failing() -> None:
    raise SourceError("broken")


async def test_a_source_that_does_not_open_closes_the_others(fixed: Any) -> None:
    one, two = fixed("one", "a"), fixed("two", opening=failing)
    with pytest.raises(SourceError, match="broken"):
        await Combined([one, two]).__aenter__()
    assert (one.opened, one.closed, two.closed) == (1, 1, 0)


async def test_sources_open_at_the_same_time(fixed: Any) -> None:
    barrier = asyncio.Barrier(2)

    async def meet() -> None:
        async with asyncio.timeout(5):
            await barrier.wait()

    async with Combined([fixed("one", "a", opening=meet), fixed("two", "b", opening=meet)]) as tools:
        assert len(await tools.list_tools()) == 2


async def test_one_that_fails_to_close_keeps_no_other_from_closing(fixed: Any) -> None:
    last = fixed("last", "b")
    with pytest.raises(SourceError, match="broken"):
        async with Combined([fixed("first", "a", closing=failing), last]):
            pass
    assert last.closed == 1


async def test_closing_goes_to_its_end_when_it_is_cancelled(fixed: Any) -> None:
    go, closing = asyncio.Event(), asyncio.Event()

    async def slowly() -> None:
        closing.set()
        await go.wait()

    slow = fixed("slow", "a", closing=slowly)

    async def use() -> None:
        async with Combined([slow]):
            pass

    task = asyncio.ensure_future(use())
    await closing.wait()
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert slow.closed == 1


async def test_tools_that_change_are_told_and_a_late_clash_is_a_warning(
    fixed: Any, until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = fixed("one", "a"), fixed("two", "b")
    combined = Combined([one, prefixed(two, "p_")])
    changed: list[int] = []
    combined.changed = lambda: changed.append(1)
    async with combined as tools:
        one.tools.append("p_b")
        two.tools.append("c")
        with caplog.at_level(logging.WARNING):
            two.changed()
            await until(lambda: bool(changed))
        assert [tool.name for tool in await tools.list_tools()] == ["a", "p_b", "p_c"]
        assert await tools.call("p_b", {}, call_id="1") == "one"
    assert "two tools are named 'p_b': one of one and one of two" in caplog.text


async def test_a_prefix_stands_before_names_and_before_those_in_after_that_are_its_own(fixed: Any) -> None:
    source = fixed("one", "login", "search", after=["login", "other"])
    async with prefixed(source, "gh_") as tools:
        listed = await tools.list_tools()
        assert [tool.name for tool in listed] == ["gh_login", "gh_search"]
        assert listed[0].rules.after == ("gh_login", "other")
        await tools.call("gh_search", {}, call_id="1")
        assert source.calls[0][0] == "search"
        with pytest.raises(ToolError):
            await tools.call("search", {}, call_id="2")


async def test_no_prefix_is_the_source_itself(fixed: Any) -> None:
    source = fixed("one", "a")
    assert prefixed(source, "") is source


async def test_a_tool_whose_name_a_prefix_makes_too_long_is_left_out_with_one_warning(
    fixed: Any, until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    source, other = fixed("one", "a" * 124, "b"), fixed("two", "c")
    async with Combined([prefixed(source, "prefix_"), other]) as tools:
        assert [tool.name for tool in await tools.list_tools()] == ["prefix_b", "c"]
        changed = asyncio.Event()
        tools.changed = changed.set
        source.tools.append("d")
        source.changed()
        await asyncio.wait_for(changed.wait(), 5)
        assert [tool.name for tool in await tools.list_tools()] == ["prefix_b", "prefix_d", "c"]
    (record,) = caplog.records
    assert f"one: the tool {'a' * 124!r} is left out: with the prefix 'prefix_'" in record.getMessage()
    assert "128 characters" in record.getMessage()


class Slow(ToolSource):
    """Lists the tools that exist when it is asked, after it is released."""

    name = "slow"

    def __init__(self) -> None:
        self.tools = ["a"]
        self.requests: list[asyncio.Event] = []

    async def list_tools(self) -> Sequence[Tool]:
        found = [Tool({"name": name}, {"type": "object"}) for name in self.tools]
        if self.opened:
            self.requests.append(asyncio.Event())
            await self.requests[-1].wait()
        return found

    opened = False

    async def call(self, name: str, args: Any, *, call_id: str) -> Any:
        return name


async def test_the_newest_listing_wins_however_long_an_older_one_takes(until: Any) -> None:
    source, executors = Slow(), Executors(MemoryStore())
    executors.source = Combined([source])
    changes: list[list[str]] = []
    await executors.open(lambda: changes.append(list(executors.tools)))
    source.opened = True
    assert source.changed is not None
    for name in "bcd":
        source.tools.append(name)
        source.changed()
        await asyncio.sleep(0)
    await until(lambda: len(source.requests) == 1)
    source.requests[0].set()
    await until(lambda: len(source.requests) == 2)
    source.requests[1].set()
    await until(lambda: bool(changes) and changes[-1] == ["a", "b", "c", "d"])
    assert len(source.requests) == 2, "what changed while a listing was read is read once more"
    assert all(len(one) <= len(two) for one, two in itertools.pairwise(changes)), changes
    await executors.close()


async def replace(combined: Combined, *sources: ToolSource) -> None:
    combined.replace(sources, await combined.prepare(sources))


async def test_sources_can_be_replaced_while_it_is_open(fixed: Any, until: Until) -> None:
    one, two, three = fixed("one", "a"), fixed("two", "b"), fixed("three", "b", "c")
    changes = 0

    def count() -> None:
        nonlocal changes
        changes += 1

    combined = Combined([one, two])
    combined.changed = count
    async with combined as tools:
        await replace(combined, one, three)
        assert [tool.name for tool in await tools.list_tools()] == ["a", "b", "c"]
        assert await tools.call("b", {}, call_id="c1") == "three"
        await until(lambda: bool(two.closed and changes))
        assert (one.opened, one.closed, three.opened) == (1, 0, 1)
    assert (one.closed, two.closed, three.closed) == (1, 1, 1)


async def test_calls_in_progress_end_where_they_began_before_the_source_is_closed(fixed: Any, until: Until) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    class Slow(type(fixed("x"))):  # type: ignore[misc]
        async def call(self, name: str, args: Any, *, call_id: str) -> Any:
            began.set()
            await go.wait()
            return self.name

    old, new = Slow("old", "a"), fixed("new", "a")
    async with Combined([old]) as tools:
        call = asyncio.ensure_future(tools.call("a", {}, call_id="c1"))
        await began.wait()
        await replace(tools, new)
        assert await tools.call("a", {}, call_id="c2") == "new"
        assert old.closed == 0
        go.set()
        assert await call == "old"
        await until(lambda: bool(old.closed))


async def test_closing_does_not_wait_for_the_calls_of_a_source_that_was_replaced(fixed: Any) -> None:
    began = asyncio.Event()

    class Hanging(type(fixed("x"))):  # type: ignore[misc]
        async def call(self, name: str, args: Any, *, call_id: str) -> Any:
            began.set()
            await asyncio.Event().wait()

    old = Hanging("old", "a")
    async with asyncio.timeout(30), Combined([old]) as tools:
        call = asyncio.ensure_future(tools.call("a", {}, call_id="c1"))
        await began.wait()
        await replace(tools, fixed("new", "a"))
    assert old.closed == 1
    call.cancel()


@pytest.mark.parametrize("wrong", ["does not open", "clashes"])
async def test_sources_that_cannot_be_used_change_nothing(fixed: Any, wrong: str) -> None:
    one, other = fixed("one", "a"), fixed("other", "b")
    bad = fixed("bad", opening=failing) if wrong == "does not open" else fixed("bad", "a")
    async with Combined([one]) as tools:
        with pytest.raises(SourceError, match=r"broken|two tools are named 'a'"):
            await tools.prepare([one, other, bad])
        assert [tool.name for tool in await tools.list_tools()] == ["a"]
        assert (one.closed, other.closed, bad.closed) == (0, 1, int(wrong == "clashes"))
        tools_before = await tools.prepare([one, other := fixed("other", "b")])
        assert list(tools_before) == ["a", "b"]
        await tools.discard([other])
        assert other.closed == 1
        assert [tool.name for tool in await tools.list_tools()] == ["a"]


class Lingering(Slow):
    """Closing it takes a while."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()
        self.state = "open"

    async def __aexit__(self, *_: object) -> None:
        self.state = "closing"
        await self.may_end.wait()
        self.state = "closed"


async def test_closing_waits_for_a_source_that_is_being_closed_already(until: Any) -> None:
    source = Lingering()
    combined = Combined([source])
    await combined.__aenter__()
    combined.replace([], await combined.prepare([]))
    await until(lambda: source.state == "closing")
    closing = asyncio.ensure_future(combined.__aexit__(None, None, None))
    await asyncio.sleep(0)
    assert not closing.done()
    source.may_end.set()
    await closing
    assert source.state == "closed"


async def test_closing_that_is_cancelled_closes_every_source_first(until: Any) -> None:
    source = Lingering()
    combined = Combined([source])
    await combined.__aenter__()
    closing = asyncio.ensure_future(combined.__aexit__(None, None, None))
    for _ in range(2):
        await asyncio.sleep(0)
        closing.cancel()
    await until(lambda: source.state == "closing")
    source.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert source.state == "closed"
