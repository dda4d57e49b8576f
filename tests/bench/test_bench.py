"""The benchmarks run. Their figures do not matter here."""

import itertools
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from bench import large_redis, litellm
from bench.conversations import STEPS, Kind, agent_kind, bodies, image_kind, text_kind
from bench.large_store import fill
from bench.measure import TINY
from bench.memory import chats_in_turn
from bench.report import Row, at_least, at_most, markdown, plain
from bench.seed import Captured, capture, default_store
from bench.store import quantile, table
from store.factory import open_url
from tests.store import servers

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "module",
    [
        "bench",
        "bench.proxy",
        "bench.agent",
        "bench.connect",
        "bench.stream",
        "bench.loop",
        "bench.doors",
        "bench.store",
        "bench.control",
        "bench.memory",
        "bench.large_store",
        "bench.litellm",
        "bench.shared_store",
        "bench.scale",
        "bench.large_redis",
    ],
)
def test_each_table_is_a_command(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = "bench.__main__" if module == "bench" else module
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    monkeypatch.delitem(sys.modules, program, raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(program, run_name="__main__")
    assert not ended.value.code
    printed = capsys.readouterr().out
    assert "--markdown" in printed
    assert "--quick" in printed
    assert ("--all" in printed) == (module == "bench")


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("bench.stream", "first byte"),
        ("bench.loop", "one step"),
        ("bench.doors", "one client"),
        ("bench.connect", "TLS"),
        ("bench.shared_store", "Redis instead of SQLite"),
        ("bench.scale", "100,000 conversations at once"),
    ],
)
def test_a_comparison_of_two_proxies_gives_a_table(module: str, words: str) -> None:
    command = [sys.executable, "-m", module, "--tiny", "--markdown"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.stdout.startswith("| what | reach | measured | ok | detail |"), ran.stderr
    assert words in ran.stdout


async def test_the_stores_table() -> None:
    rows = await table(TINY)
    assert "p99.9" in rows[0].what


@pytest.mark.parametrize(
    "kind",
    [
        text_kind("t", 5000, 8),
        text_kind("o", 5000, 9, ["[one]", "[two]"]),
        image_kind("i", 5000),
        agent_kind("a", 20_000, 17),
    ],
    ids=lambda k: k.name,
)
def test_conversations_grow_at_their_end_and_begin_anew(kind: Kind) -> None:
    sent = [b"".join(pieces) for pieces in itertools.islice(bodies(kind, 0), STEPS + 1)]
    histories = [json.loads(body)["contents"] for body in sent]
    for before, after in itertools.pairwise(histories[:STEPS]):
        assert after[: len(before)] == before
        assert [content["role"] for content in after[len(before) :]] == ["model", "user"]
    assert histories[0][0] != histories[STEPS][0]
    assert len(histories[STEPS]) == len(histories[0])
    for history in histories:
        assert [c["role"] for c in history] == ["user", "model"] * (len(history) // 2) + ["user"]


def test_conversations_are_of_the_size_they_are_said_to_be() -> None:
    for kind, size in (
        (text_kind("", 100_000, 41), 100_000),
        (image_kind("", 1_000_000), 1_000_000),
        (agent_kind("", 100_000, 41), 100_000),
    ):
        assert 0.9 * size < kind.size < 1.1 * size


def test_three_of_four_turns_of_an_agent_are_its_calls_and_their_responses() -> None:
    last = b"".join(list(itertools.islice(bodies(agent_kind("", 20_000, 17), 0), STEPS))[STEPS - 4])
    parts = [content["parts"][0] for content in json.loads(last)["contents"]]
    assert len(parts) == 17 + 2 * (STEPS - 4)
    assert sum("text" not in part for part in parts) == 3 * (len(parts) - 1) // 4
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    responses = [part["functionResponse"] for part in parts if "functionResponse" in part]
    assert [(call["id"], call["name"]) for call in calls] == [(one["id"], one["name"]) for one in responses]
    assert len({call["id"] for call in calls}) == len(calls)


def test_placeholders_stand_in_model_turns() -> None:
    body = b"".join(next(bodies(text_kind("", 9000, 20, ["[one]", "[two]"]), 0)))
    texts = [c["parts"][0]["text"] for c in json.loads(body)["contents"] if c["role"] == "model"]
    assert [text for text in texts if text in ("[one]", "[two]")] == ["[one]", "[two]"]


def test_chats_go_on_in_turn() -> None:
    sent = [b"".join(pieces) for pieces in chats_in_turn([Captured("", f"[{n}]") for n in range(6)])]
    contents = [json.loads(body)["contents"] for body in sent]
    for number, history in enumerate(contents[:3]):
        texts = [content["parts"][0]["text"] for content in history]
        assert [text for text in texts if text.startswith("[")] == [f"[{2 * number}]", f"[{2 * number + 1}]"]
    for earlier, later in zip(contents, contents[3:], strict=False):
        assert later[: len(earlier)] == earlier


async def test_calls_are_captured_as_the_addon_does() -> None:
    store = open_url("memory://", ttl=3600)
    await store.open()
    captured = await capture(store, "s", 3, answered=True)
    for one in captured:
        assert (await store.find_call(one.call_id)).status == "done"
        assert "turn_" in one.text


async def test_a_store_is_filled_with_readable_copies(tmp_path: Path) -> None:
    store = default_store(tmp_path)
    await store.open()
    await capture(store, "s", 2, answered=True)
    await store.close()
    fill(tmp_path / "state" / "toolgraft.db", 5)
    await store.open()
    calls = (await store.calls(session="s", limit=20)).items
    turn_ids = [call.turn_id for call in calls]
    found = await store.look_up("s", turn_ids=turn_ids)
    await store.close()
    assert len(set(turn_ids)) == len({call.call_id for call in calls}) == 7
    assert {call.turn_id: call.call_id for call in calls} == {
        turn_id: turn.steps[0].slots[0].call_id for turn_id, turn in found.turns.items()
    }


async def test_a_redis_store_is_filled_with_readable_copies() -> None:
    with servers.running(servers.program_under_test()) as port:
        url = f"redis://127.0.0.1:{port}"
        store = open_url(url, ttl=1000.0)
        await store.open()
        await capture(store, "s", 2, answered=True)
        call = (await store.calls(session="s")).items[-1]
        large_redis.fill(url, "s", call, 5)
        assert len((await store.calls(session="s")).items) == 7
        turns = (await store.turns("s")).items
        copied = await store.find_call(f"{call.call_id[:-8]}00000004")
        await store.close()
    assert len(turns) == 7
    assert copied.result == call.result


async def test_litellm_is_left_out_where_it_cannot_be_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (row,) = await litellm.table(TINY)
    assert row.ok is None
    assert row.detail.startswith("it could not be installed: ")


def test_rows_say_whether_the_target_is_reached() -> None:
    rows = [
        at_least("a", 0.9, 0.896),
        at_least("b", 0.9, 0.89, "details"),
        at_most("c", 10, 10.04, "MB", digits=1),
        at_most("d", 1, 1.02, "ms"),
        at_least("e", None, 0.1),
    ]
    assert [row.verdict for row in rows] == ["yes", "NO", "yes", "NO", ""]
    assert markdown(rows[1:2]).splitlines()[-1] == "| b | ≥ 0.90 | 0.89 | NO | details |"
    assert plain([Row("long name", "", "1", None)]).splitlines()[1] == "long name         1"


def test_a_quantile() -> None:
    assert quantile([float(n) for n in range(1000)], 0.999) == 999
    assert quantile([5.0], 0.5) == 5
