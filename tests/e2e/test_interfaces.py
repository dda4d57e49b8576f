"""What mitmproxy's own interfaces show of the proxy: comments in the list of flows, a content view, and commands."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tests.e2e.processes import until
from tests.e2e.proxies import DECLARATIONS, TOOLS, Proxy, ask, new_session, weather
from tests.e2e.upstreams import Gemini
from tests.ports import free_port

Json = dict[str, Any]

OSLO = 'call weather {"city": "Oslo"}'

_XSRF = "00ff" * 8
"""A page's own token, in a cookie and a header."""


class Web:
    """mitmweb's own API, as its page uses it."""

    def __init__(self, port: int) -> None:
        headers = {"Authorization": "Bearer secret", "X-XSRFToken": _XSRF}
        cookies = {"_mitmproxy_xsrf": _XSRF}
        self.http = httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, cookies=cookies, timeout=30)

    def flows(self) -> list[Json]:
        found: list[Json] = self.http.get("/flows.json").json()
        return found

    def view(self, flow: Json, message: str, view: str) -> Json:
        found: Json = self.http.get(f"/flows/{flow['id']}/{message}/content/{view}.json").json()
        return found

    def command(self, name: str, *arguments: str) -> Json:
        answer = self.http.post(f"/commands/{name}", json={"arguments": arguments})
        found: Json = answer.json()
        return found

    def events(self) -> str:
        return self.http.get("/events.json").text


@pytest.fixture(scope="module")
def mitmweb(tmp_path_factory: pytest.TempPathFactory, strict: Gemini) -> Iterator[tuple[Proxy, Web]]:
    port = free_port()
    arguments = ("--set", "web_open_browser=false", "--set", f"web_port={port}", "--set", "web_password=secret")
    folder = tmp_path_factory.mktemp("web")
    proxy = Proxy(folder, strict.url, arguments=arguments, interface="mitmweb", tools=str(TOOLS))
    web = Web(port)
    yield proxy, web
    web.http.close()
    proxy.stop()


def test_the_client_s_request_and_the_rounds_of_its_loop_say_what_they_are(
    mitmweb: tuple[Proxy, Web], gemini: Gemini
) -> None:
    proxy, web = mitmweb
    session = new_session(proxy, tools=False)
    ask(proxy, session, OSLO)
    until(lambda: len([flow for flow in web.flows() if session.name in flow["comment"]]) == 3, "three comments")
    comments = sorted(flow["comment"] for flow in web.flows() if session.name in flow["comment"])
    assert comments[:2] == [f"round {n} of a loop for session {session.name}" for n in (1, 2)]
    assert comments[2].startswith(f"{session.name}  gemini-3-flash-preview  +")
    assert "→ weather(Oslo)" in comments[2]


def test_a_request_of_the_flow_list_is_complete_in_the_control_api(mitmweb: tuple[Proxy, Web], gemini: Gemini) -> None:
    proxy, _ = mitmweb
    session = new_session(proxy, tools=False)
    ask(proxy, session, OSLO)

    def ended() -> list[Json]:
        items: list[Json] = proxy.control.ask("GET", "/v1/requests", params={"session": session.name})["items"]
        return items if all(one["state"] != "running" for one in items) else []

    (request,) = until(ended, "the request has ended")
    assert (request["state"], request["rounds"], [call["name"] for call in request["calls"]]) == (
        "done",
        2,
        ["weather"],
    )
    usage = proxy.control.ask("GET", f"/v1/sessions/{session.name}/usage")
    assert (usage["requests"], usage["calls"]["done"]) == (1, 1)
    assert usage["prompt_tokens"] == request["prompt_tokens"] > 0


def test_the_view_gemini_is_chosen_and_shows_the_conversation(mitmweb: tuple[Proxy, Web], gemini: Gemini) -> None:
    proxy, web = mitmweb
    session = new_session(proxy, tools=False)
    ask(proxy, session, OSLO, stream=True)
    until(lambda: len([flow for flow in web.flows() if session.name in flow["comment"]]) == 3, "three comments")
    *_, last = [flow for flow in web.flows() if flow["comment"] == f"round 2 of a loop for session {session.name}"]
    asked, answered = web.view(last, "request", "Auto"), web.view(last, "response", "Auto")
    assert (asked["view_name"], answered["view_name"]) == ("Gemini", "Gemini")
    assert asked["text"].splitlines()[:3] == ["user", f"  {OSLO}", "model"]
    assert '→ weather({"city": "Oslo"})' in asked["text"]
    assert "← weather" in asked["text"]
    assert "weather(city): " in asked["text"]
    assert answered["text"].startswith("model\n  weather returned")
    assert "finish: STOP" in answered["text"]
    assert web.view(last, "request", "JSON")["text"].startswith("{")


def test_other_flows_keep_their_views(mitmweb: tuple[Proxy, Web], gemini: Gemini) -> None:
    proxy, web = mitmweb
    httpx2.get(f"{proxy.url}/v1beta/models", headers={"x-goog-api-key": "k"})
    until(lambda: any(flow["request"]["path"] == "/v1beta/models" for flow in web.flows()), "the flow is listed")
    (flow,) = [flow for flow in web.flows() if flow["request"]["path"] == "/v1beta/models"]
    assert web.view(flow, "response", "Auto")["view_name"] == "JSON"
    assert flow["comment"] == ""


def test_calls_are_listed_and_approved_by_commands(mitmweb: tuple[Proxy, Web], gemini: Gemini) -> None:
    proxy, web = mitmweb
    session = new_session(proxy, tools=False)
    session.tools([DECLARATIONS[0] | {"approval": True}])
    session.policy(delivery="hold")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, proxy, session, 'call get_weather {"city": "Oslo"}')
        (call,) = session.calls(status="pending", wait=30)
        assert web.command("graft.calls") == {"value": None}
        row = f"{call['call_id']} waits for an approval {session.name} get_weather Oslo"
        until(lambda: row in " ".join(web.events().split()), "the event log lists the calls")
        assert web.command("graft.approve", call["call_id"]) == {"value": None}
        until(lambda: f"{call['call_id']} is approved" in web.events(), "the event log says so")
        session.answer(get_weather=weather)
        assert "4" in asked.result(60)
    audit = (proxy.state / "audit.jsonl").read_text()
    assert '"token":"mitmproxy"' in audit.replace(" ", "")
    web.command("graft.approve", "no-such-call")
    until(lambda: "no-such-call was not approved: there is no call no-such-call" in web.events(), "the refusal is told")


def test_the_tools_of_a_session_are_listed_with_who_runs_them(mitmweb: tuple[Proxy, Web]) -> None:
    proxy, web = mitmweb
    session = new_session(proxy)
    assert web.command("graft.tools", session.name) == {"value": None}
    rows = (
        "tool source calls description",
        "get_weather the session answered by hand The weather of a city.",
        f"weather {TOOLS} run by the proxy",
    )
    until(lambda: all(row in " ".join(web.events().split()) for row in rows), "the event log lists the tools")
    assert "no name of a session" in web.command("graft.tools", "a b")["error"]


def test_mitmdump_shows_the_conversation_where_it_shows_bodies(start: Callable[..., Proxy], gemini: Gemini) -> None:
    proxy = start(gemini.url, arguments=("--set", "flow_detail=3"))
    session = new_session(proxy)
    ask(proxy, session, "say hello")
    proxy.process.wait_for(r"usage: \d+ tokens in, \d+ out")
    assert "    user\n      say hello" in proxy.log
