"""Several processes of one proxy, on one Redis: no chat belongs to any of them."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import httpx2
import pytest

from tests.e2e.processes import until
from tests.e2e.proxies import MCP_SERVER, MODEL_PATH, TOOLS, Json, Proxy, mcp_file, model, text_of, user, weather
from tests.e2e.upstreams import Gemini
from tests.store import servers

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="--workers needs Linux")]

WORKERS = 3


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory, strict: Gemini) -> Iterator[Proxy]:
    with servers.running(servers.program_under_test()) as port:
        store = f"redis://127.0.0.1:{port}"
        folder = tmp_path_factory.mktemp("workers")
        proxy = Proxy(folder, strict.url, workers=WORKERS, store=store, tools=str(TOOLS), drain_timeout="10")
        all_up(proxy)
        yield proxy
        assert proxy.stop() == 0


def processes(proxy: Proxy) -> list[Json]:
    with httpx2.Client(base_url=proxy.control.url, headers=proxy.control.http.headers, timeout=30) as client:
        found: list[Json] = client.get("/v1/processes").json()["items"]
        return found


def all_up(proxy: Proxy, *gone: int) -> list[Json]:
    """The processes, once all serve and those that are gone have been replaced."""
    return until(
        lambda: found if len(found := processes(proxy)) == WORKERS and not {p["pid"] for p in found} & {*gone} else [],
        "all processes serve",
    )


def ask(proxy: Proxy, session: str, *contents: Json) -> str:
    """One request on a connection of its own, so that any process may get it."""
    url = f"{proxy.url}/@{session}{MODEL_PATH}:generateContent"
    got = httpx2.post(url, json={"contents": contents}, headers={"x-goog-api-key": "a-secret-key"}, timeout=30)
    assert got.status_code == 200, got.text
    return text_of(got.json())


def test_a_chat_changes_processes_with_every_request(proxy: Proxy, gemini: Gemini) -> None:
    proxy.control.session("changing").tools()
    history = [user("weather in Paris")]
    history += [model(ask(proxy, "changing", *history)), user("repeat the results")]
    proxy.control.session("changing").answer(get_weather=weather)
    for _ in range(2 * WORKERS):
        assert ask(proxy, "changing", *history) == 'get_weather returned {"city": "Paris", "celsius": 5}.'
    assert gemini.errors == []


def test_requests_of_all_processes_are_events_and_usage_of_the_session(proxy: Proxy, gemini: Gemini) -> None:
    proxy.control.session("counted").tools()
    http, path = proxy.control.http, "/v1/events?requests=1&session=counted"
    began, ended, quiet = set[str](), set[str](), 0
    with http.stream("GET", path, timeout=60) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith(":")
        for number in range(3 * WORKERS):
            ask(proxy, "counted", user(f"question {number}"))
        for line in lines:
            if line.startswith("event: "):
                found = {"request.began": began, "request.ended": ended}.get(line.removeprefix("event: "))
            elif line.startswith("data: ") and found is not None:
                found.add(json.loads(line.removeprefix("data: "))["request_id"])
            quiet += line.startswith(": keep-alive")
            if len(ended) == 3 * WORKERS or quiet == 5:
                break
    assert len(ended) == 3 * WORKERS
    assert began == ended
    assert len({request_id[:-8] for request_id in ended}) > 1, "several processes had some"
    usage = proxy.control.ask("GET", "/v1/sessions/counted/usage")
    assert (usage["requests"], usage["failed"]) == (3 * WORKERS, 0)
    assert usage["prompt_tokens"] > 0


def test_any_process_gives_the_bodies_that_one_of_them_keeps(proxy: Proxy, gemini: Gemini) -> None:
    proxy.control.session("kept").tools()
    for number in range(2 * WORKERS):
        ask(proxy, "kept", user(f"question {number} {'x' * 100_000}"))

    def got(path: str, **query: str) -> Json:
        """On a connection of its own, so that any process may get it."""
        with httpx2.Client(base_url=proxy.control.url, headers=proxy.control.http.headers, timeout=30) as client:
            found: Json = client.get(path, params=query).raise_for_status().json()
            return found

    found = got("/v1/requests", session="kept")["items"]
    assert len(found) == 2 * WORKERS
    for one in found:
        path = f"/v1/requests/{one['request_id']}"
        body = got(f"{path}/body", side="client")
        assert body["contents"][0]["parts"][0]["text"].startswith("question ")
        assert got(f"{path}/replay")["changed"] is False


def test_metrics_are_those_of_all_processes(proxy: Proxy, gemini: Gemini) -> None:
    before = proxy.control.metric("toolgraft_requests_total")
    for _ in range(4 * WORKERS):
        ask(proxy, "counted", user("hi"))
    assert proxy.control.metric("toolgraft_requests_total") == before + 4 * WORKERS


def test_a_killed_process_is_noticed_by_its_own_clients_alone(proxy: Proxy, gemini: Gemini) -> None:
    """Chats go on while processes are killed: a broken connection at worst, and the same request again succeeds."""
    over = Event()

    def chat(number: int) -> int:
        history, broken, turn = [], 0, 0
        while not over.is_set() or turn < 2:
            history.append(user(f'call weather {{"city": "City {number} {turn}"}}'))
            while True:
                try:
                    answer = ask(proxy, f"killed{number}", *history)
                    break
                except httpx2.TransportError:
                    broken += 1
            # a call that ran when its process was killed may not run twice
            assert f"City {number} {turn}" in answer or "may have run" in answer
            history.append(model(answer))
            turn += 1
        return broken

    with ThreadPoolExecutor(4) as pool:
        chats = [pool.submit(chat, number) for number in range(4)]
        try:
            for kill in range(2):
                victim = all_up(proxy)[kill % WORKERS]["pid"]
                os.kill(victim, signal.SIGKILL)
                all_up(proxy, victim)
        finally:
            over.set()
        assert sum(one.result(60) for one in chats) <= 2 * 4
    assert gemini.errors == []


def test_a_reload_refuses_nobody(proxy: Proxy, gemini: Gemini) -> None:
    """Neither new connections nor requests on kept ones fail while each process is replaced."""
    before = [one["pid"] for one in all_up(proxy)]
    url = f"{proxy.url}/@reloaded{MODEL_PATH}:generateContent"
    mark = proxy.process.mark()
    os.kill(proxy.process.pid, signal.SIGHUP)
    with httpx2.Client(headers={"x-goog-api-key": "a-secret-key"}, timeout=30) as kept:
        while "every process was replaced" not in "\n".join(proxy.process.lines[mark:]):
            assert ask(proxy, "reloaded", user("hi"))
            assert kept.post(url, json={"contents": [user("hi")]}).status_code == 200
            assert proxy.control.http.get("/healthz").status_code == 200
    assert not {one["pid"] for one in all_up(proxy)} & set(before)


def test_a_changed_tools_file_is_used_by_every_process(
    tmp_path_factory: pytest.TempPathFactory, strict: Gemini
) -> None:
    folder = tmp_path_factory.mktemp("reloaded")
    tools = folder / "tools.py"
    text = 'async def stamp() -> str:\n    """Return a text."""\n    return "{}"\n'
    tools.write_text(text.format("first"))
    with servers.running(servers.program_under_test()) as port:
        proxy = Proxy(folder, strict.url, workers=WORKERS, store=f"redis://127.0.0.1:{port}", tools=str(tools))
        try:
            all_up(proxy)
            assert "first" in ask(proxy, "reloaded", user("call stamp {}"))
            tools.write_text(text.format("second"))
            # more in a row than one process is likely to get
            until(
                lambda: all("second" in ask(proxy, "reloaded", user("call stamp {}")) for _ in range(5 * WORKERS)),
                "every process uses the changed file",
            )
            mark = proxy.process.mark()
            tools.write_text("def broken(:\n")
            proxy.process.wait_for(r"tools\.py:1: SyntaxError: .* Nothing of the change is used", after=mark)
            assert "second" in ask(proxy, "reloaded", user("call stamp {}"))
            assert proxy.log.count("changed, and used from now on") == 1
        finally:
            proxy.stop()


def test_a_restarted_mcp_server_is_another_process_in_each(tmp_path: Path, strict: Gemini) -> None:
    def states() -> list[Json]:
        with httpx2.Client(base_url=proxy.control.url, headers=proxy.control.http.headers, timeout=30) as client:
            (server,) = client.get("/v1/servers").json()["items"]
            found: list[Json] = server["processes"]
            return found if len(found) == 2 and all(one["is_up"] and one["tools"] == 7 for one in found) else []

    def pids() -> set[int]:
        return {int(path.name) for path in began.iterdir()}

    began = tmp_path / "began"
    began.mkdir()
    script = f"import os, pathlib, runpy; pathlib.Path({str(began)!r}, str(os.getpid())).touch(); "
    script += f"runpy.run_path({str(MCP_SERVER)!r}, run_name='__main__')"
    server = {"command": sys.executable, "args": ["-c", script, "stdio"]}
    with servers.running(servers.program_under_test()) as port:
        store = f"redis://127.0.0.1:{port}"
        proxy = Proxy(tmp_path, strict.url, workers=2, store=store, mcp=str(mcp_file(tmp_path, local=server)))
        until(states, "the server is up in both processes")
        before = pids()
        assert len(before) == 2
        answer = httpx2.post(
            f"{proxy.control.url}/v1/servers/local/restart", headers=proxy.control.http.headers, timeout=60
        )
        assert answer.status_code == 200, answer.text
        until(lambda: len(pids()) == 4 and states(), "the server was started in both processes once more")
        assert proxy.stop() == 0
