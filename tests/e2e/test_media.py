"""Images in results, from real executors through mitmdump to the strict Gemini."""

import base64
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.processes import ROOT
from tests.e2e.proxies import Proxy, mcp_file
from tests.e2e.upstreams import Gemini
from tests.store import servers
from tests.tools.mcp_camera import png

if TYPE_CHECKING:
    from google import genai

Json = dict[str, Any]
CAMERA = {"command": sys.executable, "args": [str(ROOT / "tests" / "tools" / "mcp_camera.py")]}
WIDTH, HEIGHT = 1000, 1048  # 3 MiB
SHOT = 'call screenshot {"width": 1000, "height": 1048}'


@pytest.fixture
def camera(start: Callable[..., Proxy], gemini: Gemini, tmp_path: Path) -> Proxy:
    """A proxy with an MCP server that takes screenshots."""
    return start(gemini.url, mcp=str(mcp_file(tmp_path / "servers", camera=CAMERA)))


def client_of(proxy: Proxy) -> "genai.Client":
    from google import genai
    from google.genai import types

    options = types.HttpOptions(base_url=proxy.url, api_version="v1beta", timeout=60_000)
    return genai.Client(api_key="a-key", http_options=options)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_screenshot_of_an_mcp_server_reaches_the_model_in_every_turn_and_never_the_client(
    camera: Proxy, gemini: Gemini, streamed: bool
) -> None:
    client = client_of(camera)
    talk = client.chats.create(model="gemini-3-flash-preview")

    def say(words: str) -> str:
        if streamed:
            return "".join(chunk.text or "" for chunk in talk.send_message_stream(words))
        return str(talk.send_message(words).text)

    answer = say(SHOT)
    assert "The start page." in answer
    image = base64.b64encode(shot := png(WIDTH, HEIGHT)).decode()
    assert 3_000_000 < len(shot) < 3_200_000
    contents = gemini.last["body"]["contents"]
    (part,) = contents[-1]["parts"]
    assert part["functionResponse"]["parts"] == [{"inlineData": {"mimeType": "image/png", "data": image}}]
    for _ in range(2):
        assert say("What do you see?")
        assert gemini.last["body"]["contents"][: len(contents)] == contents
    kept = json.dumps([content.model_dump(mode="json") for content in talk.get_history()])
    assert image[:1000] not in kept
    assert len(kept) < 10_000
    assert gemini.errors == []
    (call,) = camera.control.session("default").calls()
    assert [(one["mime_type"], one["size"]) for one in call["media"]] == [("image/png", len(shot))]
    assert gemini.dummy_signatures == 0


def test_a_model_before_gemini_3_is_told_what_it_does_not_get(camera: Proxy, gemini: Gemini) -> None:
    client = client_of(camera)
    talk = client.chats.create(model="gemini-2.5-flash")
    talk.send_message('call screenshot {"width": 4, "height": 4}')
    talk.send_message("What do you see?")
    response = gemini.last["body"]["contents"][2]["parts"][0]["functionResponse"]
    size = len(png(4, 4))
    assert response["response"] == {
        "result": ["The start page.", "[part 1: image/png]"],
        "omitted": f"image/png ({size} bytes): this model takes no images or files in results",
    }
    assert "parts" not in response
    assert gemini.errors == []


def test_interactions_get_images_in_a_list_of_contents(camera: Proxy, gemini: Gemini) -> None:
    client = client_of(camera)
    asked = 'call screenshot {"width": 4, "height": 4}'
    made = client.interactions.create(model="gemini-3-flash-preview", input=asked)
    (step,) = gemini.last["body"]["input"]
    image = base64.b64encode(png(4, 4)).decode()
    text, content = step["result"]
    assert "The start page." in text["text"]
    assert content == {"type": "image", "data": image, "mime_type": "image/png"}
    assert image not in made.model_dump_json()
    assert gemini.errors == []


def test_a_chat_at_the_responses_door_keeps_its_screenshot(camera: Proxy, gemini: Gemini) -> None:
    """The store is SQLite: a proxy that starts again has it as well."""
    image = base64.b64encode(png(4, 4)).decode()

    def ask(words: str, before: Json | None) -> Json:
        body = {"model": "gemini-3-flash-preview", "input": words}
        body |= {"previous_response_id": before["id"]} if before else {}
        answer: Json = camera.control.ask("POST", "/v1/responses", json=body, headers={"x-goog-api-key": "a-key"})
        assert image not in json.dumps(answer)
        return answer

    first = ask('call screenshot {"width": 4, "height": 4}', None)
    contents = gemini.last["body"]["contents"]
    assert image in json.dumps(contents[-1])
    camera.restart()
    ask("What do you see?", first)
    assert gemini.last["body"]["contents"][: len(contents)] == contents
    assert gemini.errors == []


@pytest.fixture
def redis() -> Iterator[str]:
    with servers.running(servers.program_under_test()) as port:
        yield f"redis://127.0.0.1:{port}/0"


def test_proxies_that_share_a_redis_share_the_screenshot(
    redis: str, start: Callable[..., Proxy], gemini: Gemini, tmp_path: Path
) -> None:
    from google.genai import types

    camera = str(mcp_file(tmp_path / "servers", camera=CAMERA))
    one, other = (start(gemini.url, folder=tmp_path / name, mcp=camera, store=redis) for name in ("one", "other"))
    image = base64.b64encode(png(WIDTH, HEIGHT)).decode()
    turn: list[types.Content] = [types.UserContent(SHOT)]
    client = client_of(one)
    answer = client.models.generate_content(model="gemini-3-flash-preview", contents=turn)
    contents = gemini.last["body"]["contents"]
    assert image in json.dumps(contents[-1])
    turn += [types.ModelContent(str(answer.text)), types.UserContent("What do you see?")]
    client = client_of(other)
    client.models.generate_content(model="gemini-3-flash-preview", contents=turn)
    assert gemini.last["body"]["contents"][: len(contents)] == contents
    assert gemini.errors == []
