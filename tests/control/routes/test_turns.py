from typing import Any

import httpx2


async def test_turns_show_what_was_seen_and_what_was_said(client: httpx2.AsyncClient, capture: Any) -> None:
    await capture("c1")
    await capture("c2", session="work")
    page = (await client.get("/v1/turns")).json()
    assert page["next_cursor"] is None
    (turn,) = page["items"]
    assert turn["turn_id"] == "turn_c1"
    assert turn["session"] == "default"
    assert turn["visible"] == [{"text": "Tool call completed [turn_c1]"}]
    assert turn["true"][0]["content"]["parts"][0]["functionCall"]["name"] == "get_weather"
    assert turn["true"][0]["calls"] == [{"name": "get_weather", "call_id": "c1"}]
    assert (turn["rounds"], turn["usage"]) == (1, [{"totalTokenCount": 3}])
    assert "pair" not in turn


async def test_turns_are_one_sessions_alone_newest_last(client: httpx2.AsyncClient, capture: Any) -> None:
    for call_id, session in (("c1", "work"), ("c2", "default"), ("c3", "work")):
        await capture(call_id, session=session)
    query = {"session": "work", "limit": "1"}
    first = (await client.get("/v1/turns", params=query)).json()
    assert [t["turn_id"] for t in first["items"]] == ["turn_c1"]
    second = (await client.get("/v1/turns", params=query | {"cursor": first["next_cursor"]})).json()
    assert [t["turn_id"] for t in second["items"]] == ["turn_c3"]
    assert second["next_cursor"] is None


async def test_a_wrong_cursor_is_refused(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/v1/turns", params={"cursor": "nonsense"})
    assert (answer.status_code, answer.json()["field"]) == (422, "cursor")
