"""The page *A turn*."""

import httpx2

from addon.console.turn import true_parts
from store.base import Store
from store.models import Slot, Status, Step, Turn
from tests.console.test_pages import HOSTILE, part
from tests.control.conftest import Capture


async def test_what_was_put_in_and_taken_out_is_marked(
    page: httpx2.AsyncClient, capture: Capture, store: Store
) -> None:
    await capture("call_1", worker="a-worker", args={"city": HOSTILE})
    await store.settle("default", "call_1", Status.DENIED, error=HOSTILE)
    text = await part(page, "turn", turn_id="turn_call_1")
    assert "put in: the text in place of the calls" in text
    assert "taken out: the client does not see this call" in text
    assert "put in: the answer that Gemini is given" in text
    assert "workers (a-worker)" in text
    assert 'data-copy="raw"' in text
    for bad in ("<script>", "<img", "\u202e", "\x1b"):
        assert bad not in text
    for listed in ("turns", "call?call_id=call_1"):
        got = await page.get(f"/console/parts/{listed}")
        assert 'href="/console/turn?session=default&amp;turn_id=turn_call_1"' in got.text


async def test_a_turn_of_hostile_text_is_text(page: httpx2.AsyncClient, store: Store) -> None:
    content = {"role": "model", "parts": [{"text": HOSTILE}, {"functionCall": {"name": HOSTILE}}, HOSTILE]}
    step = Step(content=content, slots=[Slot(name=HOSTILE)])
    await store.save_turn(
        Turn(turn_id="turn_1", session="default", visible=[{"text": HOSTILE}], steps=[step], created_at=store.clock())
    )
    text = await part(page, "turn", turn_id="turn_1")
    for bad in ("<script>", "<img", "\u202e", "\x1b"):
        assert bad not in text


async def test_a_large_turn_is_cut_and_says_so(page: httpx2.AsyncClient, store: Store) -> None:
    """The page is made in one go, while the proxy does nothing else, and fetched with each change."""
    parts = [{"text": f"part {number}: " + "é" * 9000} for number in range(500)]
    step = Step(content={"role": "model", "parts": parts}, slots=[])
    for number in range(3):
        turn = Turn(turn_id=f"turn_{number}", session="default", visible=parts, steps=[step], created_at=store.clock())
        await store.save_turn(turn)
    text = await part(page, "turn", turn_id="turn_0")
    assert len(text) < 1_000_000
    assert "part 0: " + "é" * 7000 in text
    assert text.count("part 499: " + "é" * 100) == 2
    assert "GET /v1/turns/turn_0?session=default" in text
    assert "data-copy" not in text, "half of a document is no use"
    assert len(await part(page, "turns")) < 1_500_000


async def test_an_unknown_turn_is_said(page: httpx2.AsyncClient, capture: Capture) -> None:
    await capture("call_1")
    for query in ({"turn_id": "turn_x"}, {"turn_id": "turn_call_1", "session": "other"}):
        for path in ("/console/parts/turn", f"/v1/turns/{query['turn_id']}"):
            params = query if "parts" in path else {k: v for k, v in query.items() if k == "session"}
            answer = await page.get(path, params=params)
            assert (answer.status_code, "has no such turn" in answer.json()["detail"]) == (404, True)


async def test_the_api_shows_a_turn(page: httpx2.AsyncClient, capture: Capture) -> None:
    await capture("call_1")
    (listed,) = (await page.get("/v1/turns")).json()["items"]
    assert (await page.get("/v1/turns/turn_call_1")).json() == listed


def test_calls_that_the_client_gets_are_not_taken_out() -> None:
    calls = [{"functionCall": {"name": name}} for name in ("own", "grafted")]
    step = Step(content={"parts": calls}, slots=[Slot(name="own"), Slot(name="grafted", call_id="call_1")])
    assert [bool(one.mark) for one in true_parts(step, passes=False)] == [False, True]
    assert [bool(one.mark) for one in true_parts(step, passes=True)] == [False, False]
