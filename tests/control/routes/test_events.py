import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from addon.control.app import ControlApp
from addon.control.routes import events
from addon.core.summaries import RoundSummary, Summary
from addon.monitoring.recent_requests import RecentRequests
from addon.web import event_streams
from store.base import Store
from store.models import Policy


def parsed(block: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in block.split("\n"))


async def opened(stream: Any) -> None:
    start = await stream.start()
    assert start["status"] == 200
    headers = dict(start["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert b"content-length" not in headers
    assert (await stream.block()).startswith(":")


async def test_events_come_as_they_happen_from_now_on(exchange: Callable[..., Any], capture: Any) -> None:
    await capture("old")
    stream = exchange("/v1/events")
    await opened(stream)
    await capture("new")
    blocks = [parsed(await stream.block()) for _ in range(2)]
    assert {block["event"] for block in blocks} == {"turn.created", "call.created"}
    call = next(json.loads(block["data"]) for block in blocks if block["event"] == "call.created")
    assert call["call_id"] == "new"
    assert blocks[0]["id"] != blocks[1]["id"]


async def test_events_are_not_logged(
    exchange: Callable[..., Any], capture: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)  # as mitmproxy does
    stream = exchange("/v1/events")
    await opened(stream)
    await capture("call_1", args={"city": "Stavanger"})
    assert "Stavanger" in "".join([await stream.block() for _ in range(2)])
    assert "Stavanger" not in caplog.text


async def test_a_reader_without_an_event_resumes_where_its_stream_began(
    exchange: Callable[..., Any], capture: Any, store: Store
) -> None:
    await capture("old")
    stream = exchange("/v1/events")
    await stream.start()
    comment, position = (await stream.block()).splitlines()
    assert (comment, position) == (": toolgraft", f"id: {await store.last_event_id()}")
    await stream.leave()
    await capture("new")
    stream = exchange("/v1/events", "", {"Last-Event-ID": position.removeprefix("id: ")})
    await opened(stream)
    blocks = [parsed(await stream.block()) for _ in range(2)]
    assert {json.loads(block["data"]).get("call_id", "new") for block in blocks} == {"new"}


async def test_the_event_of_a_turn_tells_what_the_list_shows(
    exchange: Callable[..., Any], capture: Any, client: httpx2.AsyncClient
) -> None:
    stream = exchange("/v1/events")
    await opened(stream)
    await capture("c1")
    blocks = [parsed(await stream.block()) for _ in range(2)]
    (event,) = (json.loads(block["data"]) for block in blocks if block["event"] == "turn.created")
    (turn,) = (await client.get("/v1/turns")).json()["items"]
    assert event == turn


@pytest.mark.parametrize("by", ["header", "query", "header before query"])
async def test_a_stream_resumes_without_loss_or_repetition(
    exchange: Callable[..., Any], capture: Any, store: Store, by: str
) -> None:
    await capture("c1")
    last_id = await store.last_event_id()
    await capture("c2")
    query = {"header": "", "query": f"after={last_id}", "header before query": "after=0"}[by]
    stream = exchange("/v1/events", query, {"Last-Event-ID": last_id} if "header" in by else {})
    await opened(stream)
    assert json.loads(parsed(await stream.block())["data"])["turn_id"] == "turn_c2"
    await stream.block()
    await capture("c3")
    assert json.loads(parsed(await stream.block())["data"])["turn_id"] == "turn_c3"


async def test_a_stream_that_starts_at_zero_gives_everything_however_much(
    exchange: Callable[..., Any], client: httpx2.AsyncClient
) -> None:
    for n in range(150):
        await client.patch(f"/v1/sessions/s{n}", json={"delivery": "loop"})
    stream = exchange("/v1/events", "after=0")
    await opened(stream)
    names = [json.loads(parsed(await stream.block())["data"])["name"] for _ in range(150)]
    assert names == [f"s{n}" for n in range(150)]


@pytest.mark.parametrize("by", ["header", "query"])
@pytest.mark.parametrize("given", ["999", "0badc0de-1", "{epoch}-999"], ids=["no epoch", "another epoch", "lost"])
async def test_an_id_of_what_is_lost_is_told_so_and_starts_with_everything(
    exchange: Callable[..., Any], capture: Any, store: Store, by: str, given: str
) -> None:
    await capture("c1")
    given = given.format(epoch=store.epoch)
    stream = exchange(
        "/v1/events", f"after={given}" * (by == "query"), {"Last-Event-ID": given} if by == "header" else {}
    )
    await opened(stream)
    reset = parsed(await stream.block())
    assert reset["event"] == "store.reset"
    assert "no longer" in json.loads(reset["data"])["detail"]
    assert json.loads(parsed(await stream.block())["data"])["turn_id"] == "turn_c1"
    last_id = parsed(await stream.block())["id"]
    await stream.leave()
    stream = exchange("/v1/events", f"after={last_id}")
    await opened(stream)
    await capture("c2")
    assert json.loads(parsed(await stream.block())["data"])["turn_id"] == "turn_c2", "the new ids are good"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams are kept alive often."""
    for module in (event_streams, events):
        monkeypatch.setattr(module, "KEEP_ALIVE", 0.01)


async def test_events_that_are_not_the_reader_s_may_expire_behind_it(
    exchange: Callable[..., Any], store: Store, quick: None
) -> None:
    now = 1_000_000.0
    store.clock = store.uptime = lambda: now
    stream = exchange("/v1/events", "session=quiet")
    await opened(stream)

    async def resumed(what: str) -> str:
        async with asyncio.timeout(5):
            while what not in (block := await stream.block()):
                pass
        return str(block)

    await store.put_policy("busy", Policy(delivery="loop"))
    position = await store.last_event_id()
    await resumed(f": keep-alive\nid: {position}")
    now += store.ttl + 1
    while await store.expire():
        pass
    await store.put_policy("quiet", Policy(delivery="loop"))
    assert "session.updated" in await resumed("event: ")


async def test_a_stream_that_breaks_is_logged(
    exchange: Callable[..., Any], store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(store, "follow", broken)
    stream = exchange("/v1/events")
    with pytest.raises(RuntimeError, match="broken"):
        await asyncio.wait_for(asyncio.shield(stream.task), 5)
    assert "broke off" in caplog.text


async def test_a_stream_of_one_session_hides_the_others(exchange: Callable[..., Any], capture: Any) -> None:
    stream = exchange("/v1/events", "session=work")
    await opened(stream)
    await capture("c1", session="other")
    await capture("c2", session="work")
    assert json.loads(parsed(await stream.block())["data"])["session"] == "work"


async def test_a_stream_ends_when_the_server_stops(exchange: Callable[..., Any], app: ControlApp) -> None:
    stream = exchange("/v1/events")
    await opened(stream)
    app.stop()
    assert await stream.block() == ""


async def test_a_stream_ends_when_the_store_closes(exchange: Callable[..., Any], store: Store) -> None:
    stream = exchange("/v1/events")
    await opened(stream)
    await store.close()
    assert await stream.block() == ""


async def test_a_stream_ends_when_the_client_hangs_up(exchange: Callable[..., Any]) -> None:
    stream = exchange("/v1/events")
    await opened(stream)
    await stream.leave()
    assert stream.task.done()


async def kinds(stream: Any, count: int) -> list[tuple[str, dict[str, Any]]]:
    found = [parsed(await stream.block()) for _ in range(count)]
    assert all("id" not in block for block in found), "there is no way to resume at one"
    return [(block["event"], json.loads(block["data"])) for block in found]


async def test_requests_and_rounds_are_events_for_those_who_ask_for_them(
    exchange: Callable[..., Any], app: ControlApp, client: httpx2.AsyncClient, capture: Any
) -> None:
    recent, summary, now = app.api.recent, Summary("work", model="m"), time.monotonic()
    recent.end(Summary("earlier", status=200))
    recent.begin(running := Summary("work", model="earlier"))
    stream, other = exchange("/v1/events", "requests=1"), exchange("/v1/events")
    for one in (stream, other):
        await opened(one)
    ((kind, record),) = await kinds(stream, 1)
    assert (kind, record["model"], record["state"]) == ("request.began", "earlier", "running")
    recent.end(running)
    assert (await kinds(stream, 1))[0][0] == "request.ended"
    recent.begin(summary)
    summary.loop.append(RoundSummary(now, now + 0.5))
    summary.loop.append(RoundSummary(now + 1))
    found = await kinds(stream, 4)
    assert [kind for kind, _ in found] == ["request.began", "round.began", "round.ended", "round.began"]
    request_id = found[0][1]["request_id"]
    assert found[2][1] | {"began": 0} == {
        "request_id": request_id,
        "session": "work",
        "round": 1,
        "began": 0,
        "seconds": 0.5,
        "state": "done",
    }
    summary.loop[1].ended = now + 2
    summary.status = 200
    recent.end(summary)
    found = await kinds(stream, 2)
    assert [(kind, data["request_id"]) for kind, data in found] == [
        ("round.ended", request_id),
        ("request.ended", request_id),
    ]
    assert found[1][1] == (await client.get("/v1/requests")).json()["items"][0]
    await capture("c1")
    assert parsed(await stream.block())["event"] == "turn.created"
    assert parsed(await other.block())["event"] == "turn.created"


async def test_a_request_that_is_over_at_once_has_both_events(exchange: Callable[..., Any], app: ControlApp) -> None:
    stream = exchange("/v1/events", "requests=true&session=work")
    await opened(stream)
    app.api.recent.end(Summary("other", status=200))
    app.api.recent.end(Summary("work", status=200))
    found = await kinds(stream, 2)
    assert [(kind, data["session"]) for kind, data in found] == [("request.began", "work"), ("request.ended", "work")]


async def test_a_token_of_one_session_is_told_of_its_requests_alone(
    exchange: Callable[..., Any], app: ControlApp
) -> None:
    token = app.api.tokens.make(("read",), "work", "")[1]
    app.api.recent.begin(Summary("other"))
    stream = exchange("/v1/events", "requests=1&stored=0", {"authorization": f"Bearer {token}"})
    await opened(stream)
    app.api.recent.end(Summary("other", status=200))
    app.api.recent.end(Summary("work", status=200))
    assert [data["session"] for _, data in await kinds(stream, 2)] == ["work", "work"]
    refused = exchange("/v1/events", "requests=1&session=other", {"authorization": f"Bearer {token}"})
    assert (await refused.start())["status"] == 403


async def test_a_stream_of_requests_alone(
    exchange: Callable[..., Any], app: ControlApp, capture: Any, client: httpx2.AsyncClient
) -> None:
    stream = exchange("/v1/events", "requests=1&stored=0")
    await opened(stream)
    await capture("c1")
    app.api.recent.end(Summary("work", status=200))
    assert [kind for kind, _ in await kinds(stream, 2)] == ["request.began", "request.ended"]
    app.stop()
    assert await stream.block() == ""
    nothing = await client.get("/v1/events?stored=0")
    assert (nothing.status_code, nothing.json()["field"]) == (422, "stored")


async def test_a_quiet_stream_of_requests_is_kept_alive(
    exchange: Callable[..., Any], app: ControlApp, quick: None
) -> None:
    stream = exchange("/v1/events", "requests=1&stored=0")
    await stream.start()
    assert [await stream.block() for _ in range(3)] == [": toolgraft", ": keep-alive", ": keep-alive"]


async def test_requests_that_a_stream_does_not_tell_of_are_counted(
    exchange: Callable[..., Any], app: ControlApp
) -> None:
    stream, recent = exchange("/v1/events", "requests=1"), app.api.recent
    await opened(stream)
    for _ in range(150):
        recent.end(Summary("work", status=200))
    found = await kinds(stream, 201)
    assert [kind for kind, _ in found[:200]] == ["request.began", "request.ended"] * 100
    assert (found[200][0], found[200][1]["requests"]) == ("requests.dropped", 50)
    recent.end(Summary("work", status=200))
    assert [kind for kind, _ in await kinds(stream, 2)] == ["request.began", "request.ended"]


async def test_a_batch_is_bounded(exchange: Callable[..., Any], app: ControlApp) -> None:
    stream, recent = exchange("/v1/events", "requests=1"), app.api.recent
    await opened(stream)
    for _ in range(300):
        recent.begin(Summary("work"))
    found = await kinds(stream, 257)
    assert [kind for kind, _ in found[:256]] == ["request.began"] * 256
    assert (found[256][0], found[256][1]["requests"]) == ("requests.dropped", 44)


async def test_nothing_listens_for_requests_that_nobody_asked_for(
    exchange: Callable[..., Any], app: ControlApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = exchange("/v1/events", "requests=0")
    await opened(stream)
    assert not app.api.recent._listeners
    monkeypatch.setattr(RecentRequests, "records", None)
    app.api.recent.end(Summary("work", status=200))


async def test_a_quiet_stream_is_kept_alive(exchange: Callable[..., Any], store: Store, quick: None) -> None:
    stream = exchange("/v1/events", "after=0")
    await stream.start()
    assert await stream.block() == ": toolgraft"
    position = await store.last_event_id()
    async with asyncio.timeout(5):
        while (block := await stream.block()) == ": keep-alive":  # before it has looked
            pass
    assert block == f": keep-alive\nid: {position}"


@pytest.mark.parametrize("given", ["x", "-1", "1.5", "", "9" * 30, "²"])
async def test_a_wrong_last_event_id_is_refused(client: httpx2.AsyncClient, given: str) -> None:
    answer = await client.get("/v1/events", headers={b"Last-Event-ID": given.encode("latin-1")})
    assert (answer.status_code, answer.json()["field"]) == (422, "Last-Event-ID")


@pytest.mark.parametrize(
    ("query", "field"), [("after=-1", "after"), ("after=x", "after"), ("after=", "after"), ("sesion=a", "sesion")]
)
async def test_a_wrong_query_is_refused(client: httpx2.AsyncClient, query: str, field: str) -> None:
    answer = await client.get(f"/v1/events?{query}")
    assert (answer.status_code, answer.json()["field"]) == (422, field)
