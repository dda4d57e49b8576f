"""Every rule of a tool for every kind of executor, in one delivery after the other."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from addon.core.framing.documents import Document
from store.models import Call, Status
from tests.leaping import pass_time
from tests.loop.conftest import Proxy, call, until
from tests.loop.deliveries import DELIVERIES
from tests.loop.kinds import KINDS, Acts, having

ELSEWHERE = ("mixed", "live")
"""Deliveries in which a step may hold a call that is answered by hand as well."""


def pairs(rule: int, deliveries: Sequence[str] = ("loop", *ELSEWHERE)) -> pytest.MarkDecorator:
    """Every kind of executor with one of the deliveries, and each with another at the next rule. Behind a placeholder
    only a worker runs calls."""
    found = [(kind, deliveries[(rule + number) % len(deliveries)]) for number, kind in enumerate(KINDS)]
    return pytest.mark.parametrize(("kind", "delivery"), [*found, ("worker", "placeholder")])


class Scene:
    def __init__(self, proxy: Proxy, folder: Path, kind: str, delivery: str) -> None:
        self.proxy = proxy
        self.folder = folder
        self.kind = kind
        self.deliver = DELIVERIES[delivery]
        self.policy: dict[str, Any] = {}

    def tools(self, **tools: Mapping[str, Any] | None) -> contextlib.AbstractAsyncContextManager[Acts]:
        return having(self.proxy, self.folder, self.kind, **tools)

    async def answers(self, *calls: Document) -> list[Document]:
        """What the model is told of a step."""
        async with asyncio.timeout(30):
            return await self.deliver(self.proxy, calls, self.policy)

    async def found(self, **fields: Any) -> Call:
        """The first call that has these fields, as soon as there is one."""
        async with asyncio.timeout(30):
            while True:
                last_event = await self.proxy.store.last_event_id()
                for one in await self.proxy.calls():
                    if all(getattr(one, name) == value for name, value in fields.items()):
                        return one
                await self.proxy.store.follow("default", last_event, 5)


@pytest.fixture
def scene(kind: str, delivery: str, tmp_path: Path) -> Scene:
    return Scene(Proxy(), tmp_path, kind, delivery)


def to(name: str, n: Any = 1) -> Document:
    return call(name, n=n)


@pairs(0)
async def test_a_call_is_run_and_its_result_told(scene: Scene) -> None:
    async with scene.tools(act={}) as acts:
        assert await scene.answers(to("act")) == [{"at": 1}]
        assert acts.begun == ["act"]
        (record,) = await scene.proxy.calls()
        assert (record.status, record.result) == (Status.DONE, {"at": 1})
        assert record.owner == ("workers" if scene.kind == "worker" else "loop")


@pairs(1)
async def test_arguments_are_checked(scene: Scene) -> None:
    async with scene.tools(act={"approval": True}) as acts:
        (response,) = await scene.answers(to("act", "one"))
        assert "the arguments do not fit" in response["error"]
        assert acts.begun == []
        assert [one.approval for one in await scene.proxy.calls()] == [None]


@pairs(2)
@pytest.mark.parametrize("order", [["first", "second"], ["second", "first"]], ids="-".join)
async def test_after(scene: Scene, order: Sequence[str]) -> None:
    async with scene.tools(first={}, second={"after": ["first"]}) as acts:
        await scene.answers(*map(to, order))
        assert acts.begun == ["first", "second"]


@pairs(3, ELSEWHERE)
@pytest.mark.parametrize("order", [["manual", "second", "free"], ["second", "manual", "free"]], ids="-".join)
async def test_after_a_call_that_is_answered_by_hand(scene: Scene, order: Sequence[str]) -> None:
    async with scene.tools(manual=None, second={"after": ["manual"]}, free={}) as acts:
        scene.policy = {"on_pending": "wait"}
        answers = asyncio.ensure_future(scene.answers(*map(to, order)))
        await until(lambda: "free" in acts.begun)
        manual = await scene.found(name="manual")
        assert (manual.owner, manual.status, acts.begun) == ("hand", Status.PENDING, ["free"])
        await scene.proxy.store.answer(manual.session, manual.call_id, result={"by": "hand"})
        assert len(await answers) == 3
        assert acts.begun == ["free", "second"]


@pairs(4, ELSEWHERE)
async def test_after_one_that_comes_after_a_call_that_is_answered_by_hand(scene: Scene) -> None:
    async with scene.tools(manual=None, second={"after": ["manual"]}, third={"after": ["second"]}, free={}) as acts:
        scene.policy = {"on_pending": "wait"}
        answers = asyncio.ensure_future(scene.answers(to("third"), to("second"), to("manual"), to("free")))
        await until(lambda: "free" in acts.begun)
        manual = await scene.found(name="manual")
        assert acts.begun == ["free"]
        await scene.proxy.store.answer(manual.session, manual.call_id, error="no")
        await answers
        assert acts.begun == ["free", "second", "third"]


@pairs(5)
async def test_idempotent(scene: Scene) -> None:
    async with scene.tools(once={"idempotent": True}, each={}) as acts:
        free = asyncio.Event()

        async def waits() -> Any:
            await free.wait()
            return {"done": True}

        acts.does = {"once": waits, "each": waits}
        answers = asyncio.ensure_future(scene.answers(to("once"), to("once"), to("once", 2), to("each"), to("each")))
        await until(lambda: len(acts.begun) == 4)
        free.set()
        assert await answers == [{"done": True}] * 5
        assert sorted(acts.begun) == ["each", "each", "once", "once"]


@pairs(6)
async def test_cache_ttl(scene: Scene) -> None:
    async with scene.tools(kept={"cache_ttl": 60.0}, fresh={}) as acts:
        for _ in range(2):
            await scene.answers(to("kept"), to("fresh"))
        await scene.answers(to("kept", 2))
        assert (acts.begun.count("kept"), acts.begun.count("fresh")) == (2, 2)


@pairs(7)
async def test_timeout(scene: Scene) -> None:
    async with scene.tools(slow={"timeout": 3}) as acts:
        acts.does["slow"] = asyncio.Event().wait
        answers = asyncio.ensure_future(scene.answers(to("slow")))
        await until(lambda: bool(acts.begun))
        pass_time(3)
        (response,) = await answers
        assert "3 s" in response["error"]
        assert acts.begun == ["slow"]
        (record,) = await scene.proxy.calls()
        assert record.status is Status.FAILED


@pairs(8)
@pytest.mark.parametrize("idempotent", [True, False])
async def test_retries(scene: Scene, idempotent: bool) -> None:
    async with scene.tools(flaky={"retries": 2, "idempotent": idempotent}) as acts:

        async def flaky() -> Any:
            if len(acts.begun) < 3:
                raise ConnectionError("not now")
            return {"tries": 3}

        acts.does["flaky"] = flaky
        (response,) = await scene.answers(to("flaky"))
        if idempotent:
            assert response == {"tries": 3}
        else:
            assert list(response) == ["error"]
            assert acts.begun == ["flaky"]


@pairs(9)
@pytest.mark.parametrize("approved", [True, False])
async def test_approval(scene: Scene, approved: bool) -> None:
    async with scene.tools(careful={"approval": True}) as acts:
        scene.policy = {"on_pending": "wait"}  # nothing runs before the decision
        answers = asyncio.ensure_future(scene.answers(to("careful")))
        record = await scene.found(approval="waiting")
        assert acts.begun == []
        await scene.proxy.store.decide(record.session, record.call_id, approved)
        (response,) = await answers
        assert response == ({"at": 1} if approved else {"error": "the call was denied"})
        assert acts.begun == (["careful"] if approved else [])


@pairs(10)
async def test_graft_parallel(scene: Scene) -> None:
    async with scene.tools(act={}) as acts:
        scene.policy = {"parallel": 2}
        free = asyncio.Event()

        async def waits() -> Any:
            await free.wait()
            return {}

        acts.does["act"] = waits
        answers = asyncio.ensure_future(scene.answers(*(to("act", n) for n in range(5))))
        await until(lambda: len(acts.begun) == 2)
        free.set()
        await answers
        assert (acts.most, len(acts.begun)) == (2, 5)


@pairs(11)
async def test_an_answer_by_hand_comes_first(scene: Scene) -> None:
    async with scene.tools(act={}) as acts:
        free = asyncio.Event()
        acts.does["act"] = free.wait
        answers = asyncio.ensure_future(scene.answers(to("act")))
        await until(lambda: acts.begun == ["act"])
        record = await scene.found(status=Status.RUNNING)
        await scene.proxy.store.answer(record.session, record.call_id, result={"by": "hand"})
        assert await answers == [{"by": "hand"}]
        free.set()


@pytest.mark.parametrize("delivery", ["live"])
@pytest.mark.parametrize("kind", ["hand"])
async def test_a_call_that_nobody_runs_is_checked_approved_and_answered_by_hand(scene: Scene) -> None:
    proxy = scene.proxy
    await proxy.open()
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    await proxy.declare({"name": "manual", "description": "d", "parametersJsonSchema": schema})
    (response,) = await scene.answers(to("manual", "one"))
    assert "do not fit" in response["error"]
    answers = asyncio.ensure_future(scene.answers(to("manual")))
    record = await scene.found(status=Status.PENDING)
    assert (record.owner, record.released) == ("hand", False)
    assert await proxy.store.claim("default", ["manual"], lease=1, worker="w") is None
    await proxy.store.answer(record.session, record.call_id, result={"ok": 1})
    assert await answers == [{"ok": 1}]
    await proxy.close()
