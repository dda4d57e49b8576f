"""Images and files by their URLs: what is fetched, from where, and what Gemini gets."""

import base64
import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from addon.core.dialects.responses.errors import Invalid
from addon.core.framing.documents import Document
from addon.core.security.egress import PUBLIC_ONLY, parse_rule
from addon.fake_gemini.server import StrictGemini
from addon.gateway.downloads import Downloaded, DownloadFailed, Downloads, with_files
from addon.tools.http_connections import Egress
from tests.gateway.conftest import House

PNG = b"\x89PNG\r\n\x1a\n of a cat"
PDF = b"%PDF-1.7 of a contract"
HERE = Egress((parse_rule("loopback"),))
PAGES: dict[str, tuple[int, dict[str, str], bytes]] = {
    "/cat.png": (200, {"content-type": "image/png; charset=x"}, PNG),
    "/cat": (200, {}, PNG),
    "/odd": (200, {"content-type": "image/<script>"}, b"\xff\xd8\xff"),
    "/photo": (200, {"content-type": "application/octet-stream"}, b"RIFF\0\0\0\0WEBP"),
    "/contract": (200, {}, PDF),
    "/notes.txt": (200, {}, b"notes"),
    "/page": (200, {"content-type": "text/html"}, b"<html>"),
    "/none": (404, {}, b"secret words"),
    "/empty": (200, {"content-type": "image/png"}, b""),
    "/zipped": (200, {"content-type": "image/png", "content-encoding": "gzip"}, gzip.compress(PNG)),
    "/bomb": (200, {"content-type": "image/png", "content-encoding": "gzip"}, gzip.compress(bytes(200_000))),
    "/odd-encoding": (200, {"content-type": "image/png", "content-encoding": "x"}, PNG),
    "/moved": (302, {"location": "/cat.png"}, b""),
    "/round": (302, {"location": "/round"}, b""),
    "/outside": (302, {"location": "http://10.1.2.3/cat.png"}, b""),
}


class Files(ThreadingHTTPServer):
    requests: list[dict[str, str]]
    url: str


@pytest.fixture
def files() -> Iterator[Files]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.requests.append({name.lower(): value for name, value in self.headers.items()})
            status, headers, body = PAGES[self.path]
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with Files(("127.0.0.1", 0), Handler) as server:
        server.requests, server.url = [], f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/cat.png", "image/png"),
        ("/cat", "image/png"),
        ("/odd", "image/jpeg"),
        ("/photo", "image/webp"),
        ("/contract", "application/pdf"),
        ("/notes.txt", "text/plain"),
        ("/zipped", "image/png"),
        ("/moved", "image/png"),
    ],
)
async def test_a_file_has_its_type_and_its_bytes(files: Files, path: str, media_type: str) -> None:
    found = await Downloads(HERE)(files.url + path, 1000)
    expected = PNG if path in ("/zipped", "/moved") else PAGES[path][2]
    assert found == Downloaded(media_type, expected)
    assert not {"authorization", "cookie", "x-goog-api-key"} & set(files.requests[-1])


@pytest.mark.parametrize(
    ("path", "most", "words"),
    [
        ("/none", 1000, "answered with status 404"),
        ("/cat.png", 10, "has more than 10 bytes"),
        ("/bomb", 1000, "has more than 1000 bytes"),
        ("/odd-encoding", 1000, "cannot be decompressed"),
        ("/round", 1000, "redirected more than 3 times"),
        ("/outside", 1000, "graft_egress does not allow"),
    ],
)
async def test_what_cannot_be_fetched_says_why_and_no_more(files: Files, path: str, most: int, words: str) -> None:
    with pytest.raises(DownloadFailed, match=words) as caught:
        await Downloads(HERE)(files.url + path, most)
    assert "secret" not in str(caught.value)


async def test_only_allowed_hosts_are_asked(files: Files) -> None:
    for egress in (Egress((PUBLIC_ONLY,)), Egress((parse_rule("loopback"),), lambda: {files.server_address[1]})):
        with pytest.raises(DownloadFailed, match="graft_egress does not allow"):
            await Downloads(egress)(files.url + "/cat.png", 1000)
    assert files.requests == []


@pytest.mark.parametrize(
    "url", ["http://", "https://[", "http://a b/", "http://127.0.0.1:1/x", "http://nowhere.invalid/x"]
)
async def test_a_url_that_leads_nowhere(url: str) -> None:
    with pytest.raises(DownloadFailed, match="could not be fetched"):
        await Downloads(HERE)(url, 1000)


def message(*parts: Document) -> list[Document]:
    return [{"role": "user", "content": [{"type": "input_text", "text": "What is 2+2?"}, *parts]}]


def image(url: str, **more: Any) -> Document:
    return {"type": "input_image", "image_url": url, **more}


@pytest.fixture
async def open_house(tmp_path: Path, gemini: StrictGemini) -> Any:
    house = House(state=tmp_path, upstream=gemini.url, download=Downloads(HERE))
    await house.open()
    yield house
    await house.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_gemini_gets_the_content(open_house: House, gemini: StrictGemini, files: Files, stream: bool) -> None:
    parts = [
        image(f"{files.url}/cat.png", detail="high"),
        {"type": "input_file", "file_url": f"{files.url}/contract", "filename": "contract.pdf"},
        {"type": "input_file", "file_url": "https://youtu.be/abc"},
    ]
    if stream:
        response = (await open_house.respond_stream(message(*parts)))[-1]["response"]
    else:
        response = await open_house.respond(message(*parts))
    body = gemini.requests[-1]["body"]
    assert body["contents"][0]["parts"][1:] == [
        {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(PNG).decode()}},
        {"inlineData": {"mimeType": "application/pdf", "data": base64.b64encode(PDF).decode()}},
        {"fileData": {"fileUri": "https://youtu.be/abc"}},
    ]
    assert body["generationConfig"] == {"mediaResolution": "MEDIA_RESOLUTION_HIGH"}
    listed = (await open_house.http.get(f"/v1/responses/{response['id']}/input_items")).json()["data"]
    assert listed[0]["content"][1]["image_url"] == f"{files.url}/cat.png"
    second = await open_house.respond("And now?", previous_response_id=response["id"])
    assert gemini.requests[-1]["body"]["contents"][0] == body["contents"][0], "it is not fetched again"
    assert (len(files.requests), second["status"]) == (2, "completed")


async def test_an_output_of_a_function_may_have_images(open_house: House, gemini: StrictGemini, files: Files) -> None:
    tool = {"type": "function", "name": "look"}
    asked = await open_house.respond("call look {}", tools=[tool])
    (made,) = [item for item in asked["output"] if item["type"] == "function_call"]
    output = {
        "type": "function_call_output",
        "call_id": made["call_id"],
        "output": [image(f"{files.url}/cat.png", detail="low")],
    }
    await open_house.respond([output], previous_response_id=asked["id"])
    (part,) = gemini.requests[-1]["body"]["contents"][-1]["parts"]
    assert part["functionResponse"]["parts"][0]["inlineData"]["mimeType"] == "image/png"
    assert gemini.requests[-1]["body"]["generationConfig"] == {"mediaResolution": "MEDIA_RESOLUTION_LOW"}
    assert gemini.refused == []


async def test_an_added_item_of_a_conversation_may_have_images(
    open_house: House, gemini: StrictGemini, files: Files
) -> None:
    begun = await open_house.ask("/v1/conversations", {"items": message(image(f"{files.url}/cat.png"))})
    path = f"/v1/conversations/{begun['id']}/items"
    await open_house.ask(path, {"items": message(image(f"{files.url}/cat.png", detail="high"))})
    await open_house.respond("And now?", conversation=begun["id"])
    (content,) = gemini.requests[-1]["body"]["contents"]
    blobs = [part["inlineData"]["data"] for part in content["parts"] if "inlineData" in part]
    assert blobs == [base64.b64encode(PNG).decode()] * 2
    assert gemini.requests[-1]["body"]["generationConfig"] == {"mediaResolution": "MEDIA_RESOLUTION_HIGH"}
    refused = await open_house.ask(path, {"items": message(image(f"{files.url}/none"))}, 400)
    assert (refused["error"]["param"], refused["error"]["code"]) == (
        "items[0].content[1].image_url",
        "invalid_image_url",
    )


@pytest.mark.parametrize(
    ("part", "param", "code"),
    [
        (image("{}/none"), "input[0].content[1].image_url", "invalid_image_url"),
        (image("{}/page"), "input[0].content[1].image_url", "invalid_image_format"),
        (image("{}/empty"), "input[0].content[1].image_url", "invalid_value"),
        (image("ftp://x/cat.png"), "input[0].content[1].image_url", "invalid_value"),
        ({"type": "input_file", "file_url": "{}/none"}, "input[0].content[1].file_url", "invalid_file_url"),
        ({"type": "input_file", "file_url": "cat.pdf"}, "input[0].content[1].file_url", "invalid_file_url"),
        (
            {"type": "input_file", "file_url": "https://youtu.be/a", "file_data": "x"},
            "input[0].content[1].file_url",
            "invalid_value",
        ),
        (image("{}/cat.png", detail="full"), "input[0].content[1].detail", "invalid_value"),
    ],
)
async def test_a_refusal_names_the_part(
    open_house: House, gemini: StrictGemini, files: Files, part: Document, param: str, code: str
) -> None:
    given = json.loads(json.dumps(message(part)).replace("{}", files.url))
    error = (await open_house.respond(given, 400, conversation="c"))["error"]
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error"), error
    assert gemini.requests == []


async def test_all_files_of_a_request_have_a_bound(files: Files) -> None:
    urls = [f"{files.url}/cat.png"] * 3
    with pytest.raises(Invalid, match="bytes") as caught:
        await with_files({"input": message(*map(image, urls))}, Downloads(HERE), 2 * len(PNG))
    assert str(caught.value.param).endswith("image_url")
    with pytest.raises(Invalid, match="32 are allowed"):
        await with_files({"input": message(*map(image, urls * 11))}, Downloads(HERE), 10_000)
    with pytest.raises(Invalid, match="send a data URL"):
        await with_files({"input": message(image(urls[0]))}, None, 10_000)


@pytest.mark.parametrize("body", [[], {}, {"input": 1}, {"input": [1]}, {"input": [{"content": [1, {"type": []}]}]}])
async def test_other_bodies_are_left_to_their_reader(body: Any) -> None:
    assert await with_files(body, None, 1) is body
