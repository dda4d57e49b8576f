"""A Redis that hangs: requests of sessions without tools do not notice, and all others cost one time-out together."""

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2

from tests.e2e.processes import until
from tests.e2e.proxies import MODEL_PATH, Proxy, ask, weather
from tests.e2e.upstreams import Gemini
from tests.lives import Live
from tests.store import servers

TIMEOUTS = 'toolgraft_store_failures_total{kind="timeout"}'
OPENINGS = "toolgraft_store_breaker_openings_total"


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def talk(url: str) -> str:
    async with Live.open(url) as live:
        await live.say("hi")
        return await live.turn()


def test_a_store_that_hangs_costs_one_time_out_and_delays_no_session_without_tools(
    tmp_path: Path, strict: Gemini, gemini: Gemini
) -> None:
    with servers.running(servers.program_under_test()) as port:
        proxy = Proxy(tmp_path, strict.url, store=f"redis://127.0.0.1:{port}")
        control = proxy.control
        try:
            plain, tooled = control.session("plain"), control.session("tooled")
            tooled.tools()
            answer = ask(proxy, plain, "hi")
            ask(proxy, tooled, "weather in Paris")
            (call,) = tooled.calls()

            def status_of(session: str) -> int:
                url = f"{proxy.url}/@{session}{MODEL_PATH}:generateContent"
                body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
                return httpx2.post(url, json=body, headers={"x-goog-api-key": "k"}, timeout=30).status_code

            with stopped(servers.pid_of(port)):
                assert ask(proxy, plain, "hi") == ask(proxy, plain, "hi", stream=True) == answer
                assert asyncio.run(talk(f"{proxy.url}/@plain"))
                assert control.metric(TIMEOUTS) == 0, "they have waited for the store"
                with ThreadPoolExecutor(50) as pool:
                    assert set(pool.map(status_of, ["tooled"] * 49 + ["unknown"])) == {503}
                assert (control.metric(TIMEOUTS), control.metric(OPENINGS)) == (1, 1)
                assert control.http.get("/healthz/live").status_code == 200
                assert control.http.get("/healthz").status_code == 503
                result = {"result": {"celsius": 5}}
                control.ask("POST", f"/v1/calls/{call['call_id']}/result", 503, json=result)
                assert ask(proxy, plain, "hi") == ask(proxy, plain, "hi", stream=True) == answer
                assert control.metric(TIMEOUTS) == 1
            until(lambda: control.http.get("/healthz").status_code == 200, "the store is back")
            assert [one["status"] for one in tooled.calls()] == ["pending"], "what was refused is stored"
            tooled.answer(get_weather=weather)
            assert ask(proxy, tooled, "hi") == answer
            plain.tools()
            assert ask(proxy, plain, "weather in Oslo").startswith("Tool call completed: get_weather")
            assert gemini.errors == []
        finally:
            proxy.stop()
