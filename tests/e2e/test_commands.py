"""Commands beside a real proxy: `calls --watch` over its restart, and `doctor`."""

import json
import subprocess
import sys
from collections.abc import Callable

from tests.e2e.processes import Process, environment
from tests.e2e.proxies import Proxy, ask, new_session
from tests.e2e.upstreams import Gemini

OSLO, BERN, LIMA = (f'call get_weather {{"city": "{city}"}}' for city in ("Oslo", "Bern", "Lima"))


def test_watch_goes_on_after_the_proxy_was_restarted(start: Callable[..., Proxy], gemini: Gemini) -> None:
    proxy = start(gemini.url)
    session = new_session(proxy)
    ask(proxy, session, OSLO)
    environ = environment(proxy.folder, TOOLGRAFT_HOME=str(proxy.state))
    watch = Process("watch", [sys.executable, "-m", "addon", "calls", "--watch", "--json"], environ)
    watch.wait_for("Oslo")
    ask(proxy, session, BERN)
    watch.wait_for("Bern")
    proxy.stop()
    watch.wait_for("is lost: waiting until the proxy is back")
    proxy.start()
    session = proxy.control.session(session.name)
    ask(proxy, session, LIMA)
    watch.wait_for("Lima")
    session.answer(get_weather="sunny")
    for city in ("Lima", "Bern", "Oslo"):
        watch.wait_for(f'"city": "{city}".*"status": "done"')
    watch.stop()
    calls = [json.loads(line) for line in watch.lines if line.startswith("{")]
    found = sorted((call["args"]["city"], call["status"]) for call in calls)
    assert found == sorted((city, status) for city in ("Oslo", "Bern", "Lima") for status in ("pending", "done"))
    assert len([line for line in watch.lines if not line.startswith("{")]) == 1


def test_doctor_finds_nothing_wrong_with_a_proxy_that_works(start: Callable[..., Proxy], gemini: Gemini) -> None:
    proxy = start(gemini.url)
    new_session(proxy)
    environ = environment(proxy.folder, TOOLGRAFT_HOME=str(proxy.state), GEMINI_API_KEY="a-secret-key")
    command = [sys.executable, "-m", "addon", "doctor", "--json", "--upstream", gemini.url]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    assert "a-secret-key" not in done.stdout
    messages = {(one["check"], one["message"]) for one in json.loads(done.stdout)["findings"]}
    assert ("store", "the store can be written to") in messages
    assert ("ca", f"mitmproxy's CA is {proxy.ca}") in messages
    assert ("tools", "2 tools were checked against Gemini's rules") in messages
    ports = next(message for check, message in messages if check == "ports")
    assert all(url.rpartition(":")[2] in ports for url in (proxy.url, proxy.address, proxy.control.url))
