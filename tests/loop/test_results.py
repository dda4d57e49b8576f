"""Results and errors of tools as the model receives them."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from addon.core.framing.documents import Document
from addon.monitoring.own_secrets import OwnSecrets
from addon.surfaces.incoming import Framing
from addon.tools import Image, Media, attempts
from addon.tools.base import ToolError
from addon.tools.outputs import MAX_RESULT, WithMedia, output_of
from store.models import Status
from tests.loop.calling import ANSWER, hangs, raises, responses, returns
from tests.loop.conftest import Proxy, Scripted, call, says


@pytest.mark.parametrize(
    ("value", "response"),
    [
        ({"a": 1}, {"a": 1}),
        ("text", {"result": "text"}),
        ('{"a": 1}', {"a": 1}),
        ([1, 2.5], {"result": [1, 2.5]}),
        (None, {"result": None}),
        ("half \ud800", {"result": "half \ufffd"}),
        ((True, {3}), {"result": [True, [3]]}),
    ],
)
async def test_a_result_is_an_object_for_the_model(proxy: Proxy, value: Any, response: Document) -> None:
    proxy.tools.add("tool", returns(value))
    await proxy.open()
    assert await responses(proxy, call("tool")) == [response]
    (record,) = await proxy.calls()
    assert (record.status, record.error) == (Status.DONE, None)


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (raises(ToolError("no such place")), "no such place"),
        (raises(ValueError("bad")), "ValueError: bad"),
        (raises(TimeoutError("the database is slow")), "TimeoutError: the database is slow"),
        (raises(SystemExit(3)), "SystemExit: 3"),
        (raises(KeyboardInterrupt("now")), "KeyboardInterrupt: now"),
        (raises(BaseExceptionGroup("two", [SystemExit(3)])), "BaseExceptionGroup: two"),
        (raises(asyncio.CancelledError()), "cancelled from within"),
        (raises(RuntimeError("half of a pair: \ud800")), "half of a pair: ?"),
        (raises(RuntimeError("x" * 100_000)), "RuntimeError: xxx"),
        (hangs, "tool took longer than 0.02 s"),
        (returns("x" * 5_000_000), f"more than the {MAX_RESULT}"),
        (returns(b"\x00"), "bytes"),
        (returns(object()), "not JSON"),
        (returns({1: {2: object()}}), "not JSON"),
    ],
)
async def test_a_tool_that_fails_is_an_error_for_the_model(
    proxy: Proxy, tool: Callable[..., Awaitable[Any]], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.tools.add("tool", tool, timeout=0.02 if tool is hangs else None)
    proxy.tools.add("other", returns("fine"))
    await proxy.open()
    broken, fine = await responses(proxy, call("tool"), call("other"))
    assert list(broken) == ["error"]
    assert words in broken["error"]
    assert len(broken["error"]) < 5000
    assert fine == {"result": "fine"}
    assert [one.status for one in await proxy.calls()] == [Status.FAILED, Status.DONE]
    assert (await proxy.calls())[0].error == broken["error"]
    caplog.text.encode()  # raises where something could not be written


async def test_a_result_that_refers_to_itself_is_an_error_for_the_model(proxy: Proxy) -> None:
    loop: list[Any] = []
    loop.append(loop)
    proxy.tools.add("tool", returns(loop))
    await proxy.open()
    (response,) = await responses(proxy, call("tool"))
    assert "not JSON" in response["error"]


PNG = b"\x89PNG\r\n" + bytes(range(256))
PART = {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(PNG).decode()}}


@pytest.mark.parametrize(
    ("value", "response"),
    [
        (Image(PNG), {"result": "[part 1: image/png]"}),
        ({"before": 1, "shot": Image(PNG)}, {"before": 1, "shot": "[part 1: image/png]"}),
        ("half \ud800", {"result": "half \ufffd"}),
        (["half \ud800", Media(PNG, "image/png")], {"result": ["half \ufffd", "[part 1: image/png]"]}),
        (WithMedia({"a": 1}, [Image(PNG)]), {"a": 1}),
    ],
)
async def test_images_in_a_result_reach_the_model_as_parts_in_every_round_and_turn(
    proxy: Proxy, value: Any, response: Document
) -> None:
    proxy.tools.add("tool", returns(value))
    await proxy.open()
    asked = [says(call("tool"), finish="STOP")]
    upstream = proxy.upstream(Scripted(asked, asked, ANSWER))
    answer = await proxy.ask("x", framing=Framing.SSE)
    assert answer.text == "done"
    assert PART["inlineData"]["data"].encode() not in answer.body
    parts = {"parts": [PART]} if "half \ud800" != value else {}
    answered = {"name": "tool", "response": response, **parts}
    contents = upstream.bodies[2]["contents"]
    assert [content["parts"][0]["functionResponse"] for content in contents[2::2]] == [answered] * 2
    assert contents[:3] == upstream.bodies[1]["contents"]


async def test_a_secret_of_the_proxy_is_taken_out_of_a_text_file(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = OwnSecrets()
    secrets.learn(["a-very-secret-key"])
    monkeypatch.setattr(attempts, "own_secrets", secrets)
    proxy.tools.add("tool", returns([Media(b"key: a-very-secret-key", "text/plain"), Image(PNG)]))
    await proxy.open()
    upstream = proxy.upstream(Scripted([says(call("tool"), finish="STOP")], ANSWER))
    await proxy.ask("x", framing=Framing.SSE)
    text, image = upstream.bodies[1]["contents"][-1]["parts"][0]["functionResponse"]["parts"]
    assert base64.b64decode(text["inlineData"]["data"]) == b"key: ***"
    assert image == PART


async def test_images_that_are_too_large_are_an_error_for_the_model(proxy: Proxy) -> None:
    proxy.tools.add("tool", returns([Image(PNG), Image(PNG + bytes(10 * 1024 * 1024))]))
    await proxy.open()
    (response,) = await responses(proxy, call("tool"))
    assert "10486284 bytes, more than the 10485760 that graft_max_media allows" in response["error"]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Image(b"what?"), "give the type"),
        (lambda: Media(b"x", "png"), "'png' is not a media type"),
        (lambda: Media(cast(Any, "text"), "text/plain"), "data must be bytes, not str"),
    ],
)
def test_media_that_cannot_be_sent_are_refused_where_they_are_made(make: Callable[[], Media], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        make()


def test_half_a_surrogate_pair_in_a_result_is_replaced() -> None:
    assert json.loads(output_of({"name\udcff": ["\ud83d", "\\ud83d", "😀"]}).data) == {
        "name\ufffd": ["\ufffd", "\\ud83d", "😀"]
    }
