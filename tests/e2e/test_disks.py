"""A disk that becomes full or read-only under a running proxy, and one that is read-only at the start. Without an
acknowledgement there is an error in the form of the API; every acknowledged write is there when the disk works again.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.e2e.disks import Disk, FailingDisk, failing, memory
from tests.e2e.processes import Process, until
from tests.e2e.proxies import MODEL_PATH, TOOLS, Proxy, Session, ask, model, sse, user
from tests.e2e.upstreams import Gemini

Json = dict[str, Any]

MODEL = "gemini-3-flash-preview"
KEY = {"x-goog-api-key": "a-secret-key", "authorization": "Bearer a-secret-key"}
STREAM = "streamGenerateContent?alt=sse"
BY_HAND = 'call get_weather {"city": "Oslo"}'
BY_LOOP = "say Wait. call hour {}"
CALLS = ("functionCall", '"function_call"', '"tool_calls":')
"""What a call is in, in the languages of the surfaces."""


class Refusal(NamedTuple):
    """A request, and the error in which its answer ends."""

    path: str
    body: Json
    error: Callable[[httpx2.Response], Json]


def contents(words: str) -> Json:
    return {"contents": [user(words)]}


def error_of(got: httpx2.Response) -> Json:
    assert got.status_code == 503, got.text
    found: Json = got.json()["error"]
    return found


def last_of_events(got: httpx2.Response) -> Json:
    events = [line.removeprefix("data: ") for line in got.text.splitlines() if line.startswith("data: {")]
    found: Json = json.loads(events[-1])
    assert "finishReason" not in got.text
    return dict(found.get("response", found)["error"])


def last_of_array(got: httpx2.Response) -> Json:
    found: Json = got.json()[-1]["error"]
    return found


REFUSALS = {
    "a placeholder": Refusal(f"/@hand{MODEL_PATH}:generateContent", contents(BY_HAND), error_of),
    "a placeholder, SSE": Refusal(f"/@hand{MODEL_PATH}:{STREAM}", contents(BY_HAND), last_of_events),
    "a placeholder, array": Refusal(f"/@hand{MODEL_PATH}:streamGenerateContent", contents(BY_HAND), last_of_array),
    "a loop": Refusal(f"{MODEL_PATH}:generateContent", contents(BY_LOOP), error_of),
    "a loop, SSE": Refusal(f"{MODEL_PATH}:{STREAM}", contents(BY_LOOP), last_of_events),
    "a loop, array": Refusal(f"{MODEL_PATH}:streamGenerateContent", contents(BY_LOOP), last_of_array),
    "a chat completion": Refusal(
        "/v1beta/openai/chat/completions",
        {"model": MODEL, "messages": [{"role": "user", "content": BY_LOOP}]},
        error_of,
    ),
    "an interaction": Refusal("/v1beta/interactions", {"model": MODEL, "input": BY_LOOP}, error_of),
    "an interaction, SSE": Refusal(
        "/v1beta/interactions", {"model": MODEL, "input": BY_LOOP, "stream": True}, last_of_events
    ),
}
DOORS = {
    "/v1/gemini": Refusal("/v1/gemini", {"model": MODEL, "input": BY_LOOP}, error_of),
    "/v1/responses": Refusal("/v1/responses", {"model": MODEL, "input": BY_LOOP}, error_of),
    "/v1/responses, SSE": Refusal("/v1/responses", {"model": MODEL, "input": BY_LOOP, "stream": True}, last_of_events),
}


def started(folder: Path, gemini: Gemini) -> Proxy:
    return Proxy(folder, gemini.url, tools=str(TOOLS), upstream=gemini.url)


class Chat:
    """Of a call whose result was acknowledged while the disk was well."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.hand = Session(proxy.control, "hand")
        self.hand.tools()
        self.hand.policy(delivery="placeholder")
        self.contents = [user(BY_HAND), model(ask(proxy, self.hand, BY_HAND))]
        self.hand.answer(get_weather={"celsius": 4})
        ask(proxy, self.hand, BY_HAND)
        self.pending = self.hand.calls(status="pending")[0]["call_id"]

    def check_refused(self) -> None:
        """Nothing is acknowledged, in no API, and no call is shown."""
        control = self.proxy.control.http
        until(lambda: control.get("/healthz").status_code == 503, "the proxy is not ready")
        assert control.get("/healthz/live").status_code == 200
        for one in (*REFUSALS.values(), *DOORS.values()):
            if one in DOORS.values():
                got = control.post(one.path, json=one.body, headers={"x-goog-api-key": "a-secret-key"})
            else:
                got = httpx2.post(self.proxy.url + one.path, json=one.body, headers=KEY, timeout=30)
            assert one.error(got)["message"].startswith("toolgraft: the store does not answer"), got.text
            assert not [word for word in CALLS if word in got.text]
        for method, path, body in (
            ("POST", f"/v1/calls/{self.pending}/result", {"result": 1}),
            ("PUT", "/v1/sessions/other/tools", {"tools": []}),
            ("PATCH", "/v1/sessions/hand", {"max_rounds": 3}),
        ):
            problem = self.proxy.control.ask(method, path, 503, json=body)
            assert "nothing was changed" in problem["detail"]

    def check_well(self) -> None:
        """What was acknowledged is in the next turn, what was refused was not done, and all goes on."""
        until(lambda: self.proxy.control.http.get("/healthz").status_code == 200, "the proxy is ready")
        asked = [*self.contents, user("repeat the results")]
        got = httpx2.post(
            f"{self.proxy.url}/@hand{MODEL_PATH}:{STREAM}", json={"contents": asked}, headers=KEY, timeout=30
        )
        assert 'get_weather returned {"celsius": 4}.' in "".join(
            part["text"] for event in sse(got.text) for part in event["candidates"][0]["content"]["parts"]
        )
        hand = Session(self.proxy.control, "hand")
        assert self.proxy.control.ask("GET", "/v1/sessions/hand")["max_rounds"] != 3
        assert ask(self.proxy, Session(self.proxy.control, "default"), BY_LOOP).endswith('hour returned {"hour": 12}.')
        ask(self.proxy, hand, BY_HAND)
        hand.answer(get_weather={"celsius": 5})


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Disk]:
    with memory(tmp_path / "state") as disk:
        yield disk


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[FailingDisk]:
    with failing(tmp_path / "state") as disk:
        yield disk


def test_a_full_disk_is_an_error_to_everyone_until_it_has_space_again(
    tmpfs: Disk, tmp_path: Path, gemini: Gemini
) -> None:
    proxy = started(tmp_path, gemini)
    try:
        chat = Chat(proxy)
        tmpfs.fill()
        chat.check_refused()
        tmpfs.clear()
        chat.check_well()
    finally:
        assert proxy.stop() == 0
    assert "Traceback" not in proxy.log


def test_a_disk_that_becomes_read_only_is_an_error_to_everyone_until_it_is_mounted_anew(
    ext4: FailingDisk, tmp_path: Path, gemini: Gemini
) -> None:
    proxy = started(tmp_path, gemini)
    try:
        chat = Chat(proxy)
        ext4.fail()
        chat.check_refused()
        assert proxy.stop() == 0
        assert "Traceback" not in proxy.log, proxy.log
        ext4.renewed()
        proxy.start()
        chat.check_well()
    finally:
        assert proxy.stop() == 0


def test_a_proxy_does_not_start_on_a_read_only_disk_and_says_why(tmpfs: Disk, tmp_path: Path, gemini: Gemini) -> None:
    proxy = started(tmp_path, gemini)
    chat = Chat(proxy)
    assert proxy.stop() == 0
    tmpfs.remount("ro")
    with pytest.raises(AssertionError):
        proxy.start()
    refused: Process = proxy.process
    assert refused.wait() == 1
    assert f"{tmpfs.folder}: the state folder cannot be written to: Read-only file system" in refused.log
    assert "Traceback" not in refused.log
    tmpfs.remount("rw")
    proxy.start()
    try:
        chat.check_well()
    finally:
        assert proxy.stop() == 0
