"""Checks against schemas: quick ones run at once, others in a process."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from addon.tools import schema_checks
from addon.tools.schema_checks import SchemaChecks
from addon.tools.schema_weight import weight

pytestmark = pytest.mark.e2e

type Until = Callable[[Callable[[], bool]], Awaitable[None]]


def choices(levels: int) -> dict[str, Any]:
    """Each choice offers the next choice twice, and the last one fits nothing."""
    defs: dict[str, Any] = {f"c{n}": {"anyOf": [{"$ref": f"#/$defs/c{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/c0", "$defs": defs | {f"c{levels}": {"type": "null"}}}


def of(member: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": member}}


ENDLESS = {
    "pattern": (of({"type": "string", "pattern": "^(a|aa)+$"}), {"a": "a" * 60 + "!"}),
    "property patterns": ({"patternProperties": {"^(a|aa)+$": {}}}, {"a" * 60 + "!": 1}),
    "choices": (choices(40), {}),
}


@pytest.fixture
async def checks() -> AsyncIterator[SchemaChecks]:
    checks = SchemaChecks()
    yield checks
    await checks.close()


@pytest.mark.parametrize("name", ENDLESS)
async def test_a_check_without_an_end_is_ended_and_the_event_loop_goes_on(name: str, checks: SchemaChecks) -> None:
    schema, value = ENDLESS[name]
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    other = asyncio.ensure_future(others())
    problems = await checks.problems(schema, value, 1)
    other.cancel()
    assert problems == ["the arguments could not be checked against the tool's schema within 1 s"]
    assert turns > 10
    assert checks.quick_problems(schema, value) is None
    assert await checks.problems(of({"pattern": "^b"}), {"a": "b"}) == []


async def test_values_are_checked_alike_wherever_that_is(checks: SchemaChecks, monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[Any, Any]] = [
        (of({"type": "integer"}), {"a": 1}),
        (of({"type": "integer"}), {"a": "x"}),
        (of({"type": "integer"}), {"a": float("nan")}),
        (of({"type": "string"}), {"a": "\ud800"}),
        ({"type": "strnig"}, {}),
        ({"$ref": "http://127.0.0.1:9/x"}, {}),
    ]
    in_process = [await checks.problems(schema, value) for schema, value in cases]
    monkeypatch.setattr(schema_checks, "_QUICK", 0)
    assert [await checks.problems(schema, value) for schema, value in cases] == in_process


@pytest.mark.parametrize(
    ("pattern", "fits", "misfits"), [(r"^\p{L}+$", "Zürich", "8"), ("^(?=.*[0-9]).{3,}$", "ab1", "abc")]
)
async def test_patterns_are_those_of_json_schema(checks: SchemaChecks, pattern: str, fits: str, misfits: str) -> None:
    schema = of({"pattern": pattern})
    assert await checks.schema_problem(schema) is None
    assert await checks.problems(schema, {"a": fits}) == []
    assert "does not match" in (await checks.problems(schema, {"a": misfits}))[0]
    assert await checks.schema_problem(of({"pattern": "("}))


@pytest.mark.parametrize("value", [{"a": 10**5000}, {"a": object()}])
async def test_a_value_that_cannot_be_encoded_does_not_fit(checks: SchemaChecks, value: Any) -> None:
    assert "cannot be checked" in (await checks.problems({}, value))[0]


@pytest.fixture
async def endless(checks: SchemaChecks, until: Until) -> tuple["asyncio.Task[Any]", asyncio.subprocess.Process]:
    """A check without an end, and its process."""
    assert await checks.problems(of({"pattern": "^b"}), {"a": "b"}) == []
    (process,) = checks._idle
    task = asyncio.ensure_future(checks.problems(*ENDLESS["pattern"]))
    await until(lambda: not checks._idle)
    return task, process


async def test_a_check_that_is_cancelled_leaves_no_process_behind(
    endless: tuple["asyncio.Task[Any]", asyncio.subprocess.Process],
) -> None:
    task, process = endless
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert process.returncode is not None


async def test_a_check_that_is_cancelled_once_more_leaves_no_process_behind_either(
    checks: SchemaChecks, endless: tuple["asyncio.Task[Any]", asyncio.subprocess.Process]
) -> None:
    task, process = endless
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await checks.close()
    assert process.returncode is not None


async def test_a_check_that_is_cancelled_while_its_process_starts_leaves_that_to_the_next(
    checks: SchemaChecks, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, start = list[asyncio.subprocess.Process](), schema_checks._start_process
    go_on = asyncio.Event()

    async def slow() -> asyncio.subprocess.Process:
        await go_on.wait()
        started.append(await start())
        return started[-1]

    monkeypatch.setattr(schema_checks, "_start_process", slow)
    task = asyncio.ensure_future(checks.problems(of({"pattern": "^b"}), {"a": "b"}))
    await asyncio.sleep(0)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    assert task.done()
    go_on.set()
    await until(lambda: bool(checks._idle))
    assert await checks.problems(of({"pattern": "^b"}), {"a": "b"}) == []
    await checks.close()
    (process,) = started
    assert process.returncode is not None


async def test_closing_ends_the_checks_in_progress_and_no_check_starts_a_process_afterwards(
    checks: SchemaChecks, endless: tuple["asyncio.Task[Any]", asyncio.subprocess.Process]
) -> None:
    task, process = endless
    await checks.close()
    assert process.returncode is not None
    assert await task == ["the arguments could not be checked against the tool's schema"]
    (problem,) = await checks.problems(of({"pattern": "^b"}), {"a": "b"})
    assert problem == "the arguments could not be checked against the tool's schema: the proxy is ending"
    assert await checks.problems(of({"type": "integer"}), {"a": 1}) == []
    assert not checks._processes


async def test_closing_waits_for_a_process_that_starts(checks: SchemaChecks, monkeypatch: pytest.MonkeyPatch) -> None:
    started, start = list[asyncio.subprocess.Process](), schema_checks._start_process

    async def recorded() -> asyncio.subprocess.Process:
        started.append(await start())
        return started[-1]

    monkeypatch.setattr(schema_checks, "_start_process", recorded)
    task = asyncio.ensure_future(checks.problems(of({"pattern": "^b"}), {"a": "b"}))
    await asyncio.sleep(0)
    assert checks._changing
    await checks.close()
    (process,) = started
    assert process.returncode is not None
    assert await task == ["the arguments could not be checked against the tool's schema"]


async def test_more_checks_than_processes_wait_for_their_turn(checks: SchemaChecks) -> None:
    schema = of({"pattern": "^b"})
    assert await asyncio.gather(*(checks.problems(schema, {"a": "b"}) for _ in range(10))) == [[]] * 10
    assert len(checks._idle) <= schema_checks._PROCESSES


@pytest.mark.parametrize(
    ("schema", "looks"),
    [
        (True, 1),
        ({"type": "string", "description": "x"}, 1),
        (of({"type": "integer"}), 1),
        (of({"anyOf": [{"type": "integer"}, {"type": "null"}]}), 3),
        ({"anyOf": [of({"type": "string"}), of({"type": "null"})]}, 3),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}, 6),
        ({"type": "array", "items": {"prefixItems": [{"type": "string"}], "items": False}}, 1),
        ({"enum": ["x"] * 40}, 11),
        ({"pattern": "a"}, None),
        ({"uniqueItems": True}, None),
        ({"$ref": "#"}, None),
        ({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}, None),
        ({"description": "x" * 10_000}, None),
        (of({f"p{n}": {} for n in range(200)}), None),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_the_work_that_a_schema_makes_has_a_bound_or_none(schema: Any, looks: int | None) -> None:
    assert weight(json.dumps(schema)) == looks


def test_choices_in_choices_multiply() -> None:
    assert (weight(json.dumps(choices(10))) or 0) > 2**10
