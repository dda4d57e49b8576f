"""Other addons and scripts around every kind of request: the content of a flow after its hooks goes upstream, and to
the client."""

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.e2e.echo import Echo, Heard
from tests.e2e.processes import ROOT, environment
from tests.e2e.proxies import Proxy, Session, command, sets, sse, text_of, user

SCRIPTS = ROOT / "tests" / "e2e" / "scripts"
KEY = "key-of-the-proxy"
LOCAL = "mapped to a file"

Json = dict[str, Any]


class Reply(NamedTuple):
    """`status` 0: the connection was closed without one."""

    status: int
    text: str
    headers: dict[str, str]


class House(NamedTuple):
    proxy: Proxy
    echo: Echo
    other: Echo
    records: Path

    def ask(self, kind: str, model: str, words: str = "please, a sekret", **headers: str) -> Reply:
        """`kind`: a key of `KINDS`."""
        self.echo.heard.clear()
        self.other.heard.clear()
        way, _, streams = kind.partition(" ")
        try:
            return _ask(self.proxy, way, model, words, headers, streams=bool(streams))
        except httpx2.RemoteProtocolError:
            return Reply(0, "", {})


KINDS: dict[str, int] = {
    "plain": 1,
    "ungrafted": 1,
    "ungrafted stream": 1,
    "placeholder": 1,
    "placeholder stream": 1,
    "loop": 2,
    "loop stream": 2,
    "gateway": 2,
    "gateway stream": 2,
    "gateway-without-tools": 1,
    "gateway-without-tools stream": 1,
}
"""Each with the number of requests that go upstream."""


WAYS = tuple(dict.fromkeys(kind.partition(" ")[0] for kind in KINDS))


def kinds(rule: int, *more: str) -> pytest.MarkDecorator:
    """Every way of a request, with a stream or without: the other one at the next rule. `more`: with each way the next
    of these, so that each comes with every rule, and with streams and without."""
    cases = []
    for number, way in enumerate(WAYS):
        streams = f"{way} stream" in KINDS and (rule + number) % 2
        kind = f"{way} stream" if streams else way
        cases.append((kind, more[(rule + number // 2) % len(more)]) if more else kind)
    return pytest.mark.parametrize(("kind", "name") if more else "kind", cases)


def _ask(proxy: Proxy, way: str, model: str, words: str, headers: dict[str, str], *, streams: bool) -> Reply:
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if way.startswith("gateway"):
        body = {"model": model, "input": words, "stream": streams}
        session = "loop" if way == "gateway" else "ungrafted"
        headers |= {"x-graft-session": session, "authorization": f"Bearer {proxy.control.token}"}
        got = httpx2.post(f"{proxy.control.url}/v1/gemini", json=body, headers=headers)
    elif way == "plain":
        got = httpx2.post(f"{proxy.url}/models/{model}", json={"said": words}, headers=headers)
    else:
        method = "streamGenerateContent?alt=sse" if streams else "generateContent"
        url = f"{proxy.url}/@{way}/v1beta/models/{model}:{method}"
        got = httpx2.post(url, json=asks(words), headers=headers)
    return Reply(got.status_code, _text(got, way), dict(got.headers))


def _text(got: httpx2.Response, way: str) -> str:
    if got.status_code != 200 or way == "plain":
        return got.text
    documents = sse(got.text) if got.headers["content-type"].startswith("text/event-stream") else [got.json()]
    return "".join(text_of(one) for one in documents if one.get("candidates"))


@contextlib.contextmanager
def running(
    folder: Path, rules: Callable[[Echo, Echo], list[str]], **options: Callable[[Echo], str]
) -> Iterator[House]:
    """A mitmdump with these rules, between two scripts."""
    records = folder / "records"
    with Echo() as echo, Echo() as other:
        words = [word for name in ("late", "records") for word in ("-s", str(SCRIPTS / f"{name}.py"))]
        proxy = Proxy(
            folder,
            echo.url,
            arguments=(*words, *(word for rule in rules(echo, other) for word in ("--set", rule))),
            environ={"RECORDS": str(records), "GEMINI_API_KEY": KEY},
            early=SCRIPTS / "early.py",
            **{name: option(echo) for name, option in options.items()},
        )
        try:
            declared: Json = {"name": "lookup", "description": "d"}
            Session(proxy.control, "placeholder").tools([declared])
            executor = {"type": "http", "url": f"{other.url}/tool"}
            Session(proxy.control, "loop").tools([declared | {"executor": executor}])
            yield House(proxy, echo, other, records)
        finally:
            proxy.stop()
    assert "Traceback" not in proxy.log, proxy.log
    assert "crashed" not in proxy.log, proxy.log


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One mitmdump with every rule of the tests, each for the models that it names."""
    folder = tmp_path_factory.mktemp("addons")
    local = folder / "local.json"
    local.write_text(json.dumps({"candidates": [{"content": {"parts": [{"text": LOCAL}]}, "finishReason": "STOP"}]}))

    def rules(echo: Echo, other: Echo) -> list[str]:
        return [
            "modify_headers=|~q|x-added|by a rule",
            "modify_headers=|~q & ~u gemini-bare|user-agent|",
            "modify_headers=|~s|x-answered|by a rule",
            "modify_body=|~q|sekret|REDACTED",
            "modify_body=|~s & ~u gemini-quiet|hush|QUIET",
            f"map_remote=|~u gemini-remote|{echo.url}/|{other.url}/",
            f"map_local=|~u gemini-local|.*|{local}",
            "block_list=|~u gemini-blocked|403",
            "block_list=|~u gemini-dropped|444",
            "stickycookie=~u gemini-sticky",
            "stickyauth=~u gemini-sticky",
        ]

    with running(folder, rules, upstream=lambda echo: echo.url) as house:
        yield house


def upstream(house: House, kind: str) -> list[Heard]:
    """What the upstream was sent."""
    assert len(house.echo.heard) == KINDS[kind]
    return house.echo.heard


def all_said(kind: str) -> int:
    """How often an answer says `hush` to the client."""
    return {"plain": 1, "placeholder": 1, "loop": 3, "gateway": 3}.get(kind.partition(" ")[0], 2)


@kinds(0)
def test_without_a_rule_for_it_nothing_is_changed(house: House, kind: str) -> None:
    got = house.ask(kind, "gemini-3-flash", "please")
    assert got.status == 200
    assert got.text.count("hush") == all_said(kind)
    assert all(b"please" in one.body for one in upstream(house, kind))


@kinds(1)
def test_headers_are_set_and_removed(house: House, kind: str) -> None:
    got = house.ask(kind, "gemini-bare")
    assert got.status == 200
    for one in upstream(house, kind):
        assert one.headers["x-added"] == "by a rule"
        assert "user-agent" not in one.headers
    assert ("x-answered" in got.headers) is not kind.startswith("gateway"), "a door's answer is its own"


@kinds(2)
def test_words_of_a_request_are_replaced(house: House, kind: str) -> None:
    assert house.ask(kind, "gemini-3-flash").status == 200
    for one in upstream(house, kind):
        assert b"sekret" not in one.body
        assert b"REDACTED" in one.body
        assert int(one.headers["content-length"]) == len(one.body)


@kinds(3)
def test_words_of_an_answer_are_replaced_in_streams_as_well(house: House, kind: str) -> None:
    got = house.ask(kind, "gemini-quiet")
    assert got.status == 200
    assert "hush" not in got.text
    assert got.text.count("QUIET") == all_said(kind)
    assert not any(b"hush" in one.body for one in upstream(house, kind))


@kinds(4)
def test_requests_are_sent_to_another_server(house: House, kind: str) -> None:
    got = house.ask(kind, "gemini-remote")
    assert got.status == 200
    assert got.text.count("hush") == all_said(kind)
    assert house.echo.heard == []
    models = [one for one in house.other.heard if one.path != "/tool"]
    assert len(models) == KINDS[kind]
    assert all(one.headers["host"] == house.other.url.removeprefix("http://") for one in models)


@kinds(5)
def test_a_file_answers_in_the_upstreams_place(house: House, kind: str) -> None:
    got = house.ask(kind, "gemini-local")
    assert got.status == 200
    assert LOCAL in got.text
    assert house.echo.heard == []


@kinds(6)
def test_requests_are_blocked(house: House, kind: str) -> None:
    assert house.ask(kind, "gemini-blocked").status == 403
    assert house.echo.heard == []


@kinds(7, "gemini-dropped", "gemini-early-kills", "gemini-late-kills")
def test_requests_are_killed(house: House, kind: str, name: str) -> None:
    got = house.ask(kind, name)
    assert got.status == (499 if kind.startswith("gateway") else 0)
    assert house.echo.heard == []


@kinds(8)
def test_cookies_and_credentials_stick(house: House, kind: str) -> None:
    house.ask("plain", "gemini-sticky", authorization="Bearer once")
    assert house.ask(kind, "gemini-sticky").status == 200
    for one in upstream(house, kind):
        assert one.headers["authorization"] == "Bearer once"
        assert one.headers["cookie"].startswith("sticky=of-")
    cookies = [one.headers["cookie"] for one in house.echo.heard]
    assert len(set(cookies)) == len(cookies), "each answer sets another"


@kinds(9)
def test_scripts_before_and_behind_the_addon_edit_requests_and_heads(house: House, kind: str) -> None:
    got = house.ask(kind, "gemini-edited", "please, word early and word late")
    assert got.status == 200
    for one in upstream(house, kind):
        assert (one.headers["x-early"], one.headers["x-late"]) == ("seen", "seen")
        assert b"WORD early and WORD late" in one.body
    if not kind.startswith("gateway"):
        assert (got.headers["x-early"], got.headers["x-late"]) == ("answered", "answered")


@kinds(10, "early", "late")
def test_a_script_answers_in_the_upstreams_place(house: House, kind: str, name: str) -> None:
    got = house.ask(kind, f"gemini-{name}-answers")
    assert got.status in (200, 502)
    assert "hush" not in got.text
    assert house.echo.heard == []


@kinds(11, "early", "late")
def test_a_script_changes_the_status_of_an_answer(house: House, kind: str, name: str) -> None:
    assert house.ask(kind, f"gemini-{name}-status").status == 429


@kinds(12, "early", "late")
def test_a_scripts_stream_callable_edits_what_is_passed_on(house: House, kind: str, name: str) -> None:
    got = house.ask(kind, f"gemini-{name}-pieces")
    assert got.status == 200
    assert "hush" not in got.text
    assert got.text.count(name[:4].upper()) == all_said(kind)
    assert "functionCall" not in got.text


@kinds(13, "early", "late")
def test_a_response_hook_edits_answers_that_do_not_stream(house: House, kind: str, name: str) -> None:
    got = house.ask(kind, f"gemini-{name}-whole")
    assert got.status == 200
    if kind.endswith("stream"):
        assert got.text.count("hush") == all_said(kind)
    else:
        assert got.text.count(name[:4].upper()) == all_said(kind)


def test_no_hook_sees_where_a_loop_runs(house: House) -> None:
    """Neither in these requests, nor in those of the tests before."""
    for kind in KINDS:
        house.ask(kind, "gemini-3-flash")
    ports = {int(one.url.rpartition(":")[2]) for one in (house.echo, house.other)}
    recorded = check_records(house, ports)
    assert {"request", "response", "responseheaders", "server_connect", "server_connected", "update"} <= recorded


def check_records(house: House, ports: set[int]) -> set[str]:
    """Every address that any hook has seen is of the upstreams, whose ports these are. Gives the hooks."""
    lines = [json.loads(line) for line in house.records.read_text().splitlines()]
    for line in lines:
        for place in ("server", "server_peer"):
            assert line.get(place) is None or line[place][1] in ports, line
        for url in (line.get("url"), line.get("pretty_url")):
            assert url is None or httpx2.URL(url).port in ports, line
        assert "toolgraft-loop" not in json.dumps(line)
    assert "toolgraft-loop" not in house.proxy.log
    return {line["hook"] for line in lines}


# --- no streams, credentials of the proxy, redirects ------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Another mitmdump: no streams, Google's hosts redirected, and credentials that the proxy adds."""

    def rules(echo: Echo, other: Echo) -> list[str]:
        return [
            f"map_remote=|~u gemini-remote|https?://generativelanguage.googleapis.com/|{other.url}/",
            "upstream_auth=me:secret",
            "anticache=true",
            "anticomp=true",
            "stickycookie=~u gemini-sticky",
        ]

    with running(tmp_path_factory.mktemp("strict"), rules, stream=lambda _: "off") as house:
        yield house


@kinds(14, "early", "late")
def test_a_response_hook_edits_every_answer_if_nothing_streams(strict_house: House, kind: str, name: str) -> None:
    got = strict_house.ask(kind, f"gemini-{name}-whole")
    assert got.status == 200
    assert got.text.count(name[:4].upper()) == all_said(kind)
    assert "functionCall" not in got.text


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("gateway")])
def test_credentials_and_what_caches_and_compresses_are_as_the_proxys_options_say(
    strict_house: House, kind: str
) -> None:
    headers = {"if_none_match": "x", "accept_encoding": "gzip, br", "authorization": "Bearer of-the-client"}
    assert strict_house.ask(kind, "gemini-3-flash", **headers).status == 200
    for one in upstream(strict_house, kind):
        assert one.headers["authorization"] == "Basic bWU6c2VjcmV0"
        assert "if-none-match" not in one.headers
        assert one.headers["accept-encoding"] == "identity"


def through_the_proxy(house: House, kind: str, model: str) -> Reply:
    """To Google, as the client sees it."""
    if kind.startswith("gateway"):
        return house.ask(kind, model)
    house.echo.heard.clear()
    house.other.heard.clear()
    way, _, streams = kind.partition(" ")
    path = f"v1beta/models/{model}:{'streamGenerateContent?alt=sse' if streams else 'generateContent'}"
    path, body = (f"models/{model}", {"said": "please"}) if way == "plain" else (path, asks("please"))
    with httpx2.Client(proxy=house.proxy.user(way)) as client:
        got = client.post(f"http://generativelanguage.googleapis.com/{path}", json=body)
    return Reply(got.status_code, _text(got, way), dict(got.headers))


def asks(words: str) -> Json:
    return {"contents": [user(words)]}


@kinds(15)
def test_rules_see_the_true_url_of_what_is_redirected(strict_house: House, kind: str) -> None:
    got = through_the_proxy(strict_house, kind, "gemini-remote")
    assert got.status == 200
    assert got.text.count("hush") == all_said(kind)
    assert strict_house.echo.heard == []
    for _ in range(2):
        assert through_the_proxy(strict_house, kind, "gemini-sticky").status == 200
    for one in upstream(strict_house, kind):
        assert one.headers["cookie"].startswith("sticky=of-"), "its host is the one that set it"
        assert one.headers["host"] == strict_house.echo.url.removeprefix("http://")


def test_no_hook_sees_where_a_request_is_redirected(strict_house: House) -> None:
    for kind in KINDS:
        through_the_proxy(strict_house, kind, "gemini-3-flash")
    lines = [json.loads(line) for line in strict_house.records.read_text().splitlines()]
    asked = [line for line in lines if line["hook"] in ("requestheaders", "request", "responseheaders", "response")]
    google = [line for line in asked if line["url"].partition("://")[2].startswith("generativelanguage.googleapis.com")]
    assert {line["hook"] for line in google} == {"requestheaders", "request", "responseheaders", "response"}
    upstreams = tuple(one.url for one in (strict_house.echo, strict_house.other))
    for line in asked:
        if "gemini-remote" not in line["url"] and "/@" not in line["url"] and line not in google:
            assert line["url"].startswith(upstreams), line
        host = dict(line["headers"]).get("Host") or dict(line["headers"]).get("host")
        assert host is None or host == httpx2.URL(line["url"]).netloc.decode(), line


# --- mitmproxy itself -------------------------------------------------------------------------------------------------


def test_a_mitmproxy_that_is_another_stops_the_start(tmp_path: Path) -> None:
    arguments = command(tmp_path, *sets(control="off"), early=SCRIPTS / "another_mitmproxy.py")
    result = subprocess.run(
        [str(word) for word in arguments],
        env=environment(tmp_path, TOOLGRAFT_HOME=str(tmp_path / "state")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    output = result.stdout + result.stderr
    assert result.returncode == 1, output
    assert "toolgraft does not fit mitmproxy" in output
    assert "HttpStream has no make_server_connection. Install mitmproxy 12 (12.2 or newer)." in output
    assert "toolgraft is up" not in output
