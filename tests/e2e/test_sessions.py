"""Sessions and chats are kept apart: by prefix, header and proxy user; by the words before a turn; newest first."""

import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tests.e2e.proxies import DECLARATIONS, Proxy, Session, model, new_session, text_of, user
from tests.e2e.upstreams import Canned, Gemini, answer

Json = dict[str, Any]

THREE = "gemini-3-flash-preview"
HOST = "https://generativelanguage.googleapis.com"
PATH = f"/v1beta/models/{THREE}:generateContent"
KEY = {"x-goog-api-key": "a-secret-key"}

Ask = Callable[[list[Json]], Json]


def by_prefix(proxy: Proxy, name: str, contents: list[Json]) -> httpx2.Response:
    return httpx2.post(f"{proxy.url}/@{name}{PATH}", json={"contents": contents}, headers=KEY)


def by_header(proxy: Proxy, name: str, contents: list[Json]) -> httpx2.Response:
    headers = KEY | {"X-Graft-Session": name}
    return httpx2.post(f"{proxy.url}{PATH}", json={"contents": contents}, headers=headers)


def by_user(proxy: Proxy, name: str, contents: list[Json]) -> httpx2.Response:
    trusts = ssl.create_default_context(cafile=str(proxy.ca))
    with httpx2.Client(proxy=proxy.user(name), verify=trusts) as client:
        return client.post(HOST + PATH, json={"contents": contents}, headers=KEY)


WAYS = [by_prefix, by_header, by_user]


@pytest.mark.parametrize("way", WAYS)
def test_two_sessions_at_once_share_nothing(way: Callable[..., httpx2.Response], proxy: Proxy, gemini: Gemini) -> None:
    one, two = new_session(proxy, tools=False), new_session(proxy, tools=False)
    one.tools([DECLARATIONS[0]])
    two.tools([DECLARATIONS[1] | {"name": "get_weather_later"}])
    with ThreadPoolExecutor(2) as pool:
        asked = {s: pool.submit(way, proxy, s.name, [user(f"weather of {s.name}, please")]) for s in (one, two)}
    first = {session: answer.result().json() for session, answer in asked.items()}

    for session, name in ((one, "get_weather"), (two, "get_weather_later")):
        (request,) = [r for r in gemini.requests if session.name in str(r["body"])]
        assert [d["name"] for d in request["body"]["tools"][0]["functionDeclarations"]] == [name]
        (call,) = session.calls()
        assert call["name"] == name
        assert [turn["turn_id"] for turn in session.turns()] == [call["turn_id"]]
        assert text_of(first[session]) == f"Tool call completed: {name} [{call['turn_id']}]"

    # the other's placeholder, in the other's words, is only words here
    one.answer(get_weather={"secret": "of one"})
    history = [user(f"weather of {one.name}, please"), model(text_of(first[one])), user("and then?")]
    stolen = way(proxy, two.name, history)
    assert stolen.status_code == 200
    assert "of one" not in stolen.text
    assert gemini.last["body"]["contents"] == history
    kept = way(proxy, one.name, history)
    assert "of one" in str(gemini.last["body"])
    assert kept.status_code == 200
    assert gemini.errors == []


@pytest.mark.parametrize("way", [by_prefix, by_header])
def test_the_sessions_name_never_reaches_upstream(
    way: Callable[..., httpx2.Response], proxy: Proxy, canned: Canned
) -> None:
    session = new_session(proxy)
    canned.says = [answer(b"{}")]
    reverse = Renamed(proxy, proxy.urls[1])
    assert way(reverse, session.name, [user("hello")]).status_code == 200
    (heard,) = canned.heard
    assert heard.startswith(f"POST {PATH} HTTP/1.1\r\n".encode())
    assert session.name.encode() not in heard
    assert b"graft" not in heard.lower()


class Renamed:
    """A proxy under another of its addresses."""

    def __init__(self, proxy: Proxy, url: str) -> None:
        self.url = url


def test_the_proxy_users_name_never_reaches_upstream(proxy: Proxy, gemini: Gemini) -> None:
    session = new_session(proxy)
    assert by_user(proxy, session.name, [user("hello")]).status_code == 200
    # a plain request through the proxy carries the user in its own headers
    plain = f"http://generativelanguage.googleapis.com{PATH}"
    with httpx2.Client(proxy=proxy.user(session.name)) as client:
        assert client.post(plain, json={"contents": [user("hello")]}, headers=KEY).status_code == 200
    assert len(gemini.requests) == 2
    for request in gemini.requests:
        assert "tools" in request["body"]
        assert "proxy-authorization" not in request["headers"]
        assert session.name not in str(request)


@pytest.mark.parametrize("name", ["not%20a%20name", "a" * 65, "a:b"])
def test_a_name_that_cannot_be_a_session_is_refused_before_anything_goes_upstream(
    name: str, proxy: Proxy, gemini: Gemini
) -> None:
    refused = by_prefix(proxy, name, [user("hello")])
    assert refused.status_code == 400
    assert "[A-Za-z0-9_.-]" in refused.json()["error"]["message"]
    assert gemini.requests == []


# --- chats of one session ---------------------------------------------------------------------------------------


@pytest.fixture
def ask(proxy: Proxy, session: Session) -> Ask:
    def asks(contents: list[Json]) -> Json:
        answer = by_prefix(proxy, session.name, contents)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    return asks


def responses(gemini: Gemini) -> list[Json]:
    contents = gemini.last["body"]["contents"]
    return [p["functionResponse"]["response"] for c in contents for p in c["parts"] if "functionResponse" in p]


@pytest.mark.smoke
def test_two_chats_with_the_same_words_are_not_mixed_up(ask: Ask, session: Session, gemini: Gemini) -> None:
    words = user("weather in Paris")
    chats: list[list[Json]] = []
    for number in (1, 2):
        first = ask([words])
        session.answer(get_weather={"chat": number})
        chats.append([words, model(text_of(first)), user("repeat the results")])
    for number, chat in enumerate(chats, 1):
        for _ in range(2):
            ask(chat)
            assert responses(gemini) == [{"chat": number}]
    assert gemini.errors == []


def test_a_user_who_signs_in_gets_no_tools_of_another_user_s_session(
    start: Callable[..., Proxy], gemini: Gemini
) -> None:
    proxy = start(gemini.url, arguments=("--proxyauth", "any", "--set", "graft_session_access=team=alice"))
    for name in ("alice", "bob", "team"):
        Session(proxy.control, name).tools([DECLARATIONS[0] | {"name": f"tool_of_{name}"}])

    def asks(way: str, name: str) -> httpx2.Response:
        body = {"contents": [user("hello")]}
        if way == "tunnel":
            trusts = ssl.create_default_context(cafile=str(proxy.ca))
            with httpx2.Client(proxy=proxy.user("alice"), verify=trusts) as client:
                return client.post(HOST + PATH, json=body, headers=KEY | {"x-graft-session": name})
        return httpx2.post(f"{proxy.url}/@{name}{PATH}", json=body, headers=KEY, auth=("alice", "x"))

    for way in ("tunnel", "reverse"):
        for name in ("alice", "team"):
            assert asks(way, name).status_code == 200
            (tool,) = gemini.last["body"]["tools"][0]["functionDeclarations"]
            assert tool["name"] == f"tool_of_{name}"
        count = len(gemini.requests)
        assert asks(way, "bob").status_code == 403
        assert len(gemini.requests) == count
