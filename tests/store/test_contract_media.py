"""The store's contract about images, sounds and files in results, over every backend."""

import base64
from pathlib import Path

import pytest

from store.base import AlreadyAnswered, Store
from store.factory import open_url
from store.models import Document
from tests.store.conftest import TTL, URLS, Clock
from tests.store.records import a_turn, save

PNG = b"\x89PNG\r\n" + bytes(range(256)) * 40


def part(data: bytes = PNG, kind: str = "image/png") -> Document:
    return {"inlineData": {"mimeType": kind, "data": base64.b64encode(data).decode()}}


async def test_parts_are_read_with_the_call_and_with_its_turn(store: Store) -> None:
    await save(store, "t1", keys=[b"k"])
    call, changed = await store.answer("one", "c-t1", result="see the image", parts=[part(), part(b"%PDF-", "a/pdf")])
    assert changed
    assert [(one.mime_type, one.size) for one in call.media] == [("image/png", len(PNG)), ("a/pdf", 5)]
    for found in (
        call,
        await store.call("one", "c-t1"),
        await store.find_call("c-t1"),
        (await store.look_up("one", turn_ids=["t1"])).calls["c-t1"],
        (await store.look_up("one", keys=[b"k"])).calls["c-t1"],
    ):
        assert (found.result, found.parts) == ("see the image", [part(), part(b"%PDF-", "a/pdf")])


async def test_lists_and_events_have_only_what_the_parts_are(store: Store) -> None:
    await save(store, "t1")
    await store.answer("one", "c-t1", parts=[part()])
    (listed,) = (await store.calls(session="one")).items
    assert [one.size for one in listed.media] == [len(PNG)]
    data = part()["inlineData"]["data"]
    assert data not in listed.model_dump_json()
    for event in await store.events(after=None):
        assert data not in str(event.data)


async def test_the_same_answer_is_accepted_and_other_parts_are_not(store: Store) -> None:
    await save(store, "t1")
    await store.answer("one", "c-t1", result=1, parts=[part()])
    call, changed = await store.answer("one", "c-t1", result=1, parts=[part()])
    assert (changed, call.parts) == (False, [part()])
    for other in ([], [part(PNG + b"1")], [part(PNG, "image/webp")], [part(), part()]):
        with pytest.raises(AlreadyAnswered) as refused:
            await store.answer("one", "c-t1", result=1, parts=other)
        assert refused.value.call.parts == [part()]


@pytest.mark.parametrize(
    "wrong",
    [{}, {"text": "x"}, {"inlineData": {"data": "QQ=="}}, {"inlineData": {"mimeType": "image/png", "data": "?"}}],
)
async def test_other_parts_are_refused_and_nothing_changes(store: Store, wrong: Document) -> None:
    await save(store, "t1")
    with pytest.raises(ValueError, match="part of a result"):
        await store.answer("one", "c-t1", parts=[part(), wrong])
    assert not (await store.call("one", "c-t1")).status.final


async def test_errors_have_no_parts(store: Store) -> None:
    await save(store, "t1")
    call, _ = await store.answer("one", "c-t1", error="failed", parts=[part()])
    assert (call.media, call.parts) == ([], [])


async def test_parts_are_taken_over_with_their_call(store: Store) -> None:
    await store.hold("p1", 60.0)
    await store.hold("p2", 60.0)
    await save(store, "t1", request_key=b"r", proxy_id="p1", call={"proxy_id": "p1", "owner": "loop"})
    await store.answer("one", "c-t1", parts=[part()])
    await store.mark_broken_off("one", "t1", proxy_id="p1")
    found = await store.take_over("one", b"r", window=60.0, proxy_id="p2")
    assert found is not None
    assert found[1][0].parts == [part()]


async def test_a_turn_that_is_saved_later_leaves_the_parts(store: Store) -> None:
    call = await save(store, "t1")
    await store.answer("one", "c-t1", parts=[part()])
    await store.save_turn(a_turn("t1", "one", call, delivered=True), [call])
    assert (await store.call("one", "c-t1")).parts == [part()]


async def test_parts_expire_with_their_call(store: Store, clock: Clock) -> None:
    await save(store, "t1", created_at=clock())
    await store.answer("one", "c-t1", parts=[part()])
    clock.now += TTL + 1
    await store.expire()
    await save(store, "t1", created_at=clock())
    assert (await store.call("one", "c-t1")).parts == []


async def test_parts_are_kept_on_disk(tmp_path: Path) -> None:
    for time in range(2):
        store = open_url(URLS["sqlite"](tmp_path), ttl=TTL)
        await store.open()
        if not time:
            await save(store, "t1")
            await store.answer("one", "c-t1", parts=[part()])
        assert (await store.call("one", "c-t1")).parts == [part()]
        await store.close()
