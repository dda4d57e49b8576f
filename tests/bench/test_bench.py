"""The benchmarks run. Their figures do not matter here."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import litellm
from bench.__main__ import TABLES
from bench.conversations import STEPS, Kind, bodies, new_image_kind, text_kind
from bench.measure import TINY
from bench.report import Row, at_least, at_most, markdown, plain
from bench.seed import capture
from bench.store import quantile, table
from store.factory import open_url

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.e2e
@pytest.mark.parametrize("name", sorted(TABLES.keys() - {"litellm", "memory"}))
def test_each_table_is_measured(name: str) -> None:
    command = [sys.executable, "-m", "bench", name, "--tiny", "--markdown"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.stdout.startswith("| what | reach | measured | ok | detail |"), ran.stderr
    assert len(ran.stdout.splitlines()) > 2


@pytest.mark.e2e
def test_an_option_reaches_the_proxy_with_the_addon() -> None:
    command = [sys.executable, "-m", "bench", "stream", "--tiny", "--set", "graft_fast=perhaps"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 1
    assert "graft_fast='perhaps'" in ran.stderr


def test_an_unknown_table_is_refused() -> None:
    ran = subprocess.run([sys.executable, "-m", "bench", "x"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert "there is no table 'x'" in ran.stderr


async def test_the_stores_table() -> None:
    rows = await table(TINY)
    assert "p99.9" in rows[0].what


@pytest.mark.parametrize(
    "kind",
    [text_kind("t", 5000, 8), text_kind("o", 5000, 9, [("1?", "[one]"), ("2?", "[two]")]), new_image_kind("i", 5000)],
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


def test_each_new_image_is_another_one() -> None:
    first, second = itertools.islice(bodies(new_image_kind("", 1_000_000), 0, cold=True), 2)
    one, other = (json.loads(b"".join(b))["contents"][-1]["parts"][1]["inlineData"] for b in (first, second))
    assert one != other
    assert len(one["data"]) % 4 == 0


@pytest.mark.parametrize(("kind", "size"), [(text_kind("", 10**5, 41), 10**5), (new_image_kind("", 10**6), 10**6)])
def test_conversations_are_of_the_size_they_are_said_to_be(kind: Kind, size: int) -> None:
    assert 0.9 * size < kind.size < 1.1 * size


def test_placeholders_stand_in_model_turns_after_their_questions() -> None:
    placeholders = [("1?", "[one]"), ("2?", "[two]")]
    body = b"".join(next(bodies(text_kind("", 9000, 20, placeholders), 0)))
    texts = [c["parts"][0]["text"] for c in json.loads(body)["contents"]]
    assert [both for both in zip(texts[::2], texts[1::2], strict=False) if both in placeholders] == placeholders


async def test_calls_are_captured_as_the_addon_does() -> None:
    store = open_url("memory://", ttl=3600)
    await store.open()
    captured = await capture(store, "s", 3)
    for one in captured:
        assert (await store.find_call(one.call_id)).status == "done"
        assert "turn_" in one.text


async def test_litellm_is_left_out_if_it_cannot_be_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
