"""Wrong options, ports and files end the start with a message; wrong input while it runs changes nothing."""

import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.processes import ROOT, Process, environment, mitmdump
from tests.e2e.proxies import Proxy, Session, command, sets, user
from tests.e2e.upstreams import END, Canned, chunked
from tests.ports import free_port

Json = dict[str, Any]

PATH = "/v1beta/models/gemini-3-flash-preview:generateContent"
KEY = {"x-goog-api-key": "a-secret-key"}


class Refused:
    """A start that comes to nothing: mitmdump ends by itself with status 1, and never serves at its port."""

    opens = False
    """Whether the port may be up for a moment."""

    def __init__(self, folder: Path, *arguments: str, path: str = str(ROOT), **options: str) -> None:
        port = free_port()
        chosen = {"control": "127.0.0.1:0"} | options
        words = command(folder, "--mode", f"regular@127.0.0.1:{port}", *sets(**chosen), *arguments)
        process = Process("mitmdump", words, environment(folder, TOOLGRAFT_HOME=str(folder / "state"), PYTHONPATH=path))
        try:
            self.status = process.wait()
        finally:
            process.stop()
        self.log = process.log
        assert self.status == 1, self.log
        assert "toolgraft is up" not in self.log
        assert self.opens or "listening" not in self.log
        assert "Traceback" not in self.log
        with socket.socket() as closed:
            assert closed.connect_ex(("127.0.0.1", port)) != 0


class RefusedLate(Refused):
    opens = True


def test_a_wrong_option_ends_the_start_and_says_what_fits(tmp_path: Path) -> None:
    """Whatever is wrong: `tests/faults/test_start.py` has every option. This one is found before anything is opened."""
    refused = Refused(tmp_path, token="not a token")
    assert "graft_token=(not shown): must be printable ASCII without spaces" in refused.log
    assert "not a token" not in refused.log
    assert not (tmp_path / "state" / "toolgraft.db").exists()


def test_an_option_that_mitmproxy_cannot_take_ends_the_start(tmp_path: Path) -> None:
    """It would serve on without the addon."""
    assert "graft_delivery needs a value" in Refused(tmp_path, "--set", "graft_delivery").log


def test_an_option_without_its_prefix_ends_the_start(tmp_path: Path) -> None:
    """Any script may have an option of this name: nobody knows before all are loaded."""
    refused = RefusedLate(tmp_path, "--set", "delivery=loop")
    assert "delivery: there is no such option; did you mean graft_delivery?" in refused.log


def test_an_addon_whose_packages_are_missing_ends_the_start(tmp_path: Path) -> None:
    hidden = tmp_path / "msgspec.py"
    hidden.write_text("raise ImportError('No module named msgspec')")
    refused = RefusedLate(tmp_path, path=f"{tmp_path}:{ROOT}")
    assert "toolgraft cannot be loaded: ImportError: No module named msgspec" in refused.log


def test_a_control_port_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = Refused(tmp_path, control=f"127.0.0.1:{port}")
    assert f"control API: 127.0.0.1:{port} is taken" in refused.log
    assert "--set graft_control=host:port" in refused.log
    assert not (tmp_path / "state" / "control.url").exists()


@pytest.mark.smoke
def test_a_port_of_the_proxy_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = RefusedLate(tmp_path, "--mode", f"reverse:http://127.0.0.1:9@{address}")
    assert f"failed to listen on {address}" in refused.log


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file of someone's")
    refused = Refused(tmp_path)
    assert f"{tmp_path / 'state'}: the state folder cannot be made" in refused.log
    assert (tmp_path / "state").read_text() == "a file of someone's"


def test_a_database_that_cannot_be_used_is_named_and_left_alone(tmp_path: Path) -> None:
    """`tests/store/sqlite/test_refused_files.py` has every kind."""
    path = tmp_path / "state" / "toolgraft.db"
    path.parent.mkdir()
    before = b"this was never a database" * 100
    path.write_bytes(before)
    refused = RefusedLate(tmp_path)
    assert f"store {path}: this is not a SQLite database" in refused.log
    assert "not open" not in refused.log
    assert path.read_bytes() == before
    assert not path.with_name("toolgraft.db-wal").exists()


def test_two_proxies_do_not_share_a_database(proxy: Proxy, tmp_path: Path) -> None:
    refused = RefusedLate(tmp_path, store=f"sqlite:///{proxy.state / 'toolgraft.db'}")
    assert f"store {proxy.state / 'toolgraft.db'}: another toolgraft uses it" in refused.log


@pytest.mark.parametrize("options", [{}, {"store": "memory://"}], ids=["all", "addresses"])
def test_two_proxies_do_not_share_a_state_folder(options: dict[str, str], proxy: Proxy, tmp_path: Path) -> None:
    addresses = [(proxy.state / name).read_text() for name in ("control.url", "proxy.json")]
    refused = Refused(tmp_path, state=str(proxy.state), **options)
    assert f"{proxy.state}: another proxy uses this state folder; stop it, or give this one its own" in refused.log
    # and the one that runs keeps its place
    assert [(proxy.state / name).read_text() for name in ("control.url", "proxy.json")] == addresses
    assert addresses[0].strip() == proxy.control.url
    assert proxy.control.ask("GET", "/healthz")["status"] == "ok"


def test_a_state_folder_that_others_can_write_to_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "token").write_text("planted")
    (tmp_path / "state").chmod(0o777)
    refused = Refused(tmp_path)
    assert f"{tmp_path / 'state'}: others can write to it" in refused.log
    assert "planted" not in refused.log


@pytest.mark.parametrize("how", ["touched", "removed"])
def test_a_proxy_whose_addon_is_taken_out_or_loaded_again_ends(how: str, tmp_path: Path) -> None:
    """It would go on without it: what the addon holds is not free yet when it is loaded once more."""
    entry = tmp_path / "entry.py"
    entry.write_text("from addon.hooks.compose import build_addons\naddons = build_addons()\n")
    words: list[str | Path] = [mitmdump(), "-s", entry, "--set", f"confdir={tmp_path / 'conf'}", *sets(control="off")]
    words += ["--mode", f"regular@127.0.0.1:{free_port()}"]
    process = Process("mitmdump", words, environment(tmp_path, TOOLGRAFT_HOME=str(tmp_path / "state")))
    try:
        process.wait_for("toolgraft is up")
        if how == "removed":
            entry.unlink()
        else:
            os.utime(entry, (2e9, 2e9))
        assert process.wait() == 1
        assert "toolgraft was removed from mitmproxy, which would continue without it: the proxy ends" in process.log
        assert "Traceback" not in process.log
    finally:
        process.stop()


# --- while it runs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"{not json", b'["a list"]', b'"text"', b"\xff\xfe", b""])
def test_a_body_that_is_not_an_object_is_refused_with_one_warning(
    body: bytes, proxy: Proxy, session: Session, canned: Canned
) -> None:
    url = f"{proxy.urls[1]}/@{session.name}{PATH}"
    for _ in range(3):
        refused = httpx2.post(url, content=body, headers=KEY)
        assert refused.status_code == 400
        assert "toolgraft: the request cannot be read: " in refused.json()["error"]["message"]
    assert canned.heard == []
    warnings = [line for line in proxy.process.lines if "request was refused: it cannot be read" in line]
    assert len(warnings) == len(set(warnings)) > 0


@pytest.mark.smoke
def test_results_are_taken_once(proxy: Proxy, session: Session) -> None:
    url = f"{proxy.url}/@{session.name}{PATH}"
    httpx2.post(url, json={"contents": [user("weather in Paris")]}, headers=KEY)
    (call,) = session.calls()
    path = f"/v1/calls/{call['call_id']}/result"
    for status, body in (
        (422, {"result": 1, "error": "both"}),
        (422, {}),
        (200, {"result": {"celsius": 3}}),
        (200, {"result": {"celsius": 3}}),
        (409, {"result": {"celsius": 4}}),
        (409, {"error": "too late"}),
    ):
        session.control.ask("POST", path, status, json=body)
    session.control.ask("POST", "/v1/calls/call_nobody/result", 404, json={"result": 1})
    assert session.calls()[0]["result"] == {"celsius": 3}


def test_the_control_api_takes_no_more_than_graft_max_body(session: Session) -> None:
    """The shared proxy has 100,000 bytes, whether or not the length is said before."""
    path = f"/v1/sessions/{session.name}/tools"
    big = json.dumps({"tools": [], "pad": "x" * 100_000}).encode()
    headers = {"content-type": "application/json"}
    for content in (big, (big[n : n + 1000] for n in range(0, len(big), 1000))):
        refused = session.control.http.put(path, content=content, headers=headers)
        assert refused.status_code == 413
        assert "graft_max_body, 100000 bytes" in refused.json()["detail"]
    assert session.control.http.put(path, content=b"{}").status_code == 415


def test_large_bodies_are_rewritten_also_where_mitmproxy_is_told_to_stream_them(
    start: Callable[..., Proxy], canned: Canned
) -> None:
    """The answer says no length: mitmproxy would begin to stream it long after the hook of its headers."""
    call = {"functionCall": {"name": "get_weather", "args": {"city": "Paris" * 1000}}}
    body = json.dumps({"candidates": [{"content": {"role": "model", "parts": [call]}, "finishReason": "STOP"}]})
    pieces = [body[n : n + 1000].encode() for n in range(0, len(body), 1000)]
    canned.says = [*chunked(pieces, "application/json"), END]
    proxy = start(canned.url, arguments=("--set", "stream_large_bodies=1k"))
    assert "stream_large_bodies=1k is switched off" in proxy.log
    session = proxy.control.session("default")
    session.tools()
    asked = json.dumps({"contents": [user("weather" * 1000)]}).encode()
    answer = httpx2.post(f"{proxy.url}{PATH}", content=asked)
    assert "functionCall" not in answer.text
    assert b"get_weather" in canned.heard[0]
    assert len(session.calls()) == 1


def test_a_client_that_hangs_up_in_mid_stream_leaves_its_calls_behind(
    proxy: Proxy, session: Session, canned: Canned
) -> None:
    """The first call was complete, the second was not there yet. What was seen can be answered."""

    def event(part: Json) -> bytes:
        return f"data: {json.dumps({'candidates': [{'content': {'role': 'model', 'parts': [part]}}]})}\r\n\r\n".encode()

    call = {"functionCall": {"name": "get_weather", "args": {"city": "Paris"}, "id": "x1"}, "thoughtSignature": "AAAA"}
    never = threading.Event()
    canned.says = [*chunked([event({"text": "Let me "}), event(call), event({"text": "see."})]), never, END]
    mark = proxy.process.mark()
    url = f"{proxy.urls[1]}/@{session.name}{PATH.replace('generateContent', 'streamGenerateContent?alt=sse')}"
    with httpx2.stream("POST", url, json={"contents": [user("weather")]}, headers=KEY, timeout=20) as stream:
        text_read = ""
        for text in stream.iter_text():
            text_read += text
            if "see." in text_read:
                break
    proxy.process.wait_for("the client hung up", after=mark)
    assert canned.broken.wait(20), "upstream is not told that the client is gone"
    assert "functionCall" not in text_read
    (kept,) = session.calls()
    assert (kept["name"], kept["status"], kept["gemini_id"]) == ("get_weather", "pending", "x1")
    (turn,) = session.turns()
    assert turn["delivered"] is False
    session.answer(get_weather={"celsius": 1})
