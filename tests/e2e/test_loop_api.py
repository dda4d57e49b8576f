"""Rules of calls that are set through the control API: HTTP executors, and tools that wait for an approval."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.processes import until
from tests.e2e.proxies import TOOLS, Proxy, Session, ask
from tests.e2e.upstreams import Canned, Gemini, answer

Json = dict[str, Any]

STOCK = {
    "name": "stock",
    "description": "How many there are.",
    "parameters": {"type": "OBJECT", "properties": {"article": {"type": "STRING"}}, "required": ["article"]},
}


def stock_at(url: str) -> list[Json]:
    return [STOCK | {"executor": {"type": "http", "url": url, "headers": {"authorization": "Bearer of-the-tool"}}}]


@pytest.mark.parametrize("stream", [pytest.param(False, marks=pytest.mark.smoke), True])
def test_an_http_executor_set_through_the_api_is_called(
    stream: bool, looper: Proxy, bare: Session, gemini: Gemini
) -> None:
    with Canned() as endpoint:
        endpoint.says = [answer(b'{"count": 3}')]
        bare.tools(stock_at(f"{endpoint.url}/stock"))
        words = 'call stock {"article": "pen"} and call weather {"city": "Oslo"}'
        assert ask(looper, bare, words, stream=stream) == (
            'stock returned {"count": 3}. weather returned {"city": "Oslo", "celsius": 4}.'
        )
    head, _, body = endpoint.heard[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /stock HTTP/1.1")
    assert b"Bearer of-the-tool" in head
    call = next(call for call in bare.calls() if call["name"] == "stock")
    assert json.loads(body) == {"call_id": call["call_id"], "name": "stock", "args": {"article": "pen"}}
    assert b"a-secret-key" not in endpoint.heard[0]
    assert gemini.errors == []


@pytest.mark.parametrize("port", ["control", "reverse", "regular"])
def test_a_port_of_the_proxy_itself_is_no_endpoint(port: str, looper: Proxy, bare: Session, gemini: Gemini) -> None:
    url = {"control": looper.control.url, "reverse": looper.url, "regular": f"http://{looper.address}"}[port]
    bare.tools(stock_at(f"{url}/v1/sessions"))
    ask(looper, bare, 'call stock {"article": "pen"}')
    (call,) = bare.calls()
    assert call["status"] == "failed"
    assert "graft_egress does not allow" in call["error"]
    assert gemini.errors == []


# --- approval ---------------------------------------------------------------------------------------------------


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Where the tool notes that it ran."""
    return tmp_path / "marks"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def words(marks: Path) -> str:
    return f'call delete {{"path": "/x", "file": "{marks}"}} and call hour {{}}'


def waiting(session: Session) -> Json:
    """The call, as soon as it waits."""
    found = until(lambda: [c for c in session.calls() if c["approval"] == "waiting"], "a call waits for approval")
    (call,) = found
    assert (call["name"], call["status"]) == ("delete", "pending")
    return call


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.smoke)])
def test_a_call_that_is_approved_is_run(
    stream: bool, looper: Proxy, bare: Session, gemini: Gemini, marks: Path, pool: ThreadPoolExecutor
) -> None:
    asked = pool.submit(ask, looper, bare, words(marks), stream=stream)
    call = waiting(bare)
    assert not marks.exists()
    bare.control.ask("POST", f"/v1/calls/{call['call_id']}/approve")
    assert asked.result(20) == 'delete returned {"deleted": "/x"}. hour returned {"hour": 12}.'
    assert marks.read_text() == "deleted /x\n"
    assert gemini.errors == []


@pytest.mark.smoke
def test_a_call_that_is_denied_is_not_run_and_the_model_knows(
    looper: Proxy, bare: Session, gemini: Gemini, marks: Path, pool: ThreadPoolExecutor
) -> None:
    asked = pool.submit(ask, looper, bare, words(marks))
    call = waiting(bare)
    bare.control.ask("POST", f"/v1/calls/{call['call_id']}/deny", json={"reason": "not on a Friday"})
    reply = asked.result(20)
    assert reply.startswith('delete returned {"error": "')
    assert "not on a Friday" in reply
    assert not marks.exists()
    assert gemini.errors == []
    bare.control.ask("POST", f"/v1/calls/{call['call_id']}/approve", 409)


@pytest.mark.smoke
def test_a_proxy_that_was_killed_while_a_call_waits_lists_it_as_expired_and_never_runs_it(
    start: Callable[..., Proxy], gemini: Gemini, marks: Path, pool: ThreadPoolExecutor
) -> None:
    proxy = start(gemini.url, tools=str(TOOLS))
    session = proxy.control.session("default")
    asked: Future[str] = pool.submit(ask, proxy, session, words(marks))
    call = waiting(session)
    os.kill(proxy.process.pid, signal.SIGKILL)
    assert proxy.process.wait() == -signal.SIGKILL
    assert isinstance(asked.exception(20), httpx2.TransportError)
    proxy.control.close()
    proxy.start()
    session = proxy.control.session("default")
    assert {one["call_id"]: one["status"] for one in session.calls()}[call["call_id"]] == "expired"
    problem = proxy.control.ask("POST", f"/v1/calls/{call['call_id']}/approve", 409)
    assert "what waited for this call is gone" in problem["detail"]
    assert ask(proxy, session, "call hour {}") == 'hour returned {"hour": 12}.'
    assert not marks.exists()
    assert len(gemini.requests) == 3
