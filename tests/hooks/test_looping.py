"""Requests that a loop answers, the loop's first request, and the contents of the flows."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import http

from addon.hooks.mitmproxy_patches import diverted
from addon.hooks.upstream_flows import LoopWatcher, proxy_url
from addon.loop.runner import Head, Runner
from addon.loop.server import LoopAnswer, LoopServer
from addon.loop.upstream import Outgoing
from addon.tools.http_connections import OwnedConnections
from store.models import Policy
from tests.hooks.harness import GOOGLE, PATH, Hooks, request, response

BODY = b'{"contents":[{"role":"user","parts":[{"text":"hi"}]}]}'
STREAM = PATH.replace("generateContent", "streamGenerateContent?alt=sse")


@pytest.fixture
async def looping(make: Callable[..., Hooks], tmp_path: Path) -> Hooks:
    """With a tool that the proxy can run."""
    file = tmp_path / "tools.py"
    file.write_text('def lookup() -> str:\n    """Look it up."""\n    return "found"\n')
    hooks = make(tools=[str(file)])
    await hooks.call("running")
    assert hooks.lifecycle.runtime is not None
    await hooks.lifecycle.runtime.executors.open()
    tools = hooks.lifecycle.runtime.executors.tools
    hooks.lifecycle.runtime.grafter.session_configs.share([tool.declaration for tool in tools.values()])
    hooks.lifecycle.runtime.loops = Noted()
    return hooks


class Noted(LoopServer):
    """Begins no loop."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[Runner] = []

    def answer(self, runner: Runner, *conditions: Callable[[], bool], keeps: bool = False) -> LoopAnswer:
        self.begun.append(runner)
        self.last = LoopAnswer(keeps=keeps)
        return self.last


@pytest.mark.parametrize(
    ("path", "body", "policy", "diverted"),
    [
        (PATH, BODY, {}, True),
        (STREAM, BODY, {}, True),
        (PATH, BODY, {"delivery": "loop"}, True),
        (PATH, BODY, {"delivery": "placeholder"}, False),
        (PATH, BODY, {"delivery": "passthrough"}, False),
        (STREAM, BODY, {"delivery": "placeholder"}, True),
        (STREAM, BODY, {"delivery": "passthrough"}, True),
        (PATH.replace("generateContent", "countTokens"), BODY, {}, False),
        ("/v1beta/cachedContents", b'{"model":"models/gemini-3-flash-preview",' + BODY[1:], {}, False),
        (PATH, BODY[:-1] + b',"generationConfig":{"responseMimeType":"application/json"}}', {}, False),
        (PATH.replace("3-flash-preview", "2.5-flash"), BODY, {}, True),
        (PATH, b"not JSON", {}, False),
    ],
    ids=[
        "JSON",
        "a stream",
        "loop",
        "placeholder",
        "passthrough",
        "a placeholder in a stream",
        "passthrough in a stream",
        "countTokens",
        "cachedContents",
        "output in JSON",
        "an older model",
        "not understood",
    ],
)
async def test_streams_and_requests_that_may_lead_to_calls_of_the_proxy_go_to_a_loop(
    looping: Hooks, path: str, body: bytes, policy: dict[str, str], diverted: bool
) -> None:
    await looping.store.put_policy("default", Policy.model_validate(policy))
    await begun(looping, request(f"https://{GOOGLE}{path}", body))
    assert bool(runners(looping)) is diverted


def loops(hooks: Hooks) -> Noted:
    assert hooks.lifecycle.runtime is not None
    found = hooks.lifecycle.runtime.loops
    assert isinstance(found, Noted)
    return found


def runners(hooks: Hooks) -> list[Runner]:
    """The loops that were begun, none of which runs."""
    return loops(hooks).begun


async def begun(hooks: Hooks, flow: http.HTTPFlow) -> http.HTTPFlow:
    """A flow whose request has come in, and is on its way."""
    await hooks.ask(flow)
    hooks.destination(flow)
    return flow


async def test_a_loop_begins_with_what_the_flow_holds_when_every_addon_has_seen_it(looping: Hooks) -> None:
    flow = request(f"https://{GOOGLE}{PATH}", BODY, {"x-goog-api-key": "k", "Proxy-Connection": "keep-alive"})
    await looping.ask(flow)
    grafted = flow.request.content
    assert grafted is not None
    assert b"lookup" in grafted
    assert flow.request.url == f"https://{GOOGLE}{PATH}"
    flow.request.url = "http://gateway.example:81/p"
    flow.request.headers["x-more"] = "1"
    flow.request.headers["host"] = "elsewhere.example"
    flow.request.content = grafted.replace(b'"hi"', b'"changed"')
    looping.destination(flow)
    (runner,) = runners(looping)
    assert runner.address.url == "http://gateway.example:81/p"
    sent = {name.lower(): value for name, value in runner.address.headers}
    assert (sent[b"x-goog-api-key"], sent[b"x-more"], sent[b"host"]) == (b"k", b"1", b"elsewhere.example")
    assert not {b"proxy-connection", b"content-length"} & sent.keys()
    assert b'"changed"' in runner.body
    assert flow.request.content == runner.body, "what another addon wrote stays in sight"


async def test_a_flow_shows_what_the_client_sent_while_its_loop_runs(looping: Hooks) -> None:
    flow = await begun(looping, request(f"https://{GOOGLE}{STREAM}", BODY))
    assert flow.request.url == f"https://{GOOGLE}{STREAM}"
    assert flow.request.content == BODY
    assert flow.request.headers["content-length"] == str(len(BODY))
    assert flow.server_conn.address == (GOOGLE, 443)
    flow.response = response(b"", "text/event-stream")
    flow.response.data.content = None
    await looping.call("responseheaders", flow)
    assert flow.response.stream is True
    for piece in (b"data: ", b"{}\r\n\r\n"):
        await loops(looping).last.put(piece)
    await looping.call("response", flow)
    assert flow.response.content == b"data: {}\r\n\r\n"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_compressed_request_goes_upstream_without_its_compression(looping: Hooks, encoding: str) -> None:
    flow = request(f"https://{GOOGLE}{PATH}", BODY)
    flow.request.encode(encoding)
    await looping.ask(flow)
    assert flow.request.headers["content-encoding"] == encoding
    assert b"lookup" in (flow.request.content or b"")
    looping.destination(flow)
    (runner,) = runners(looping)
    assert b"lookup" in runner.body
    assert b"content-encoding" not in {name.lower() for name, _ in runner.address.headers}
    assert flow.request.headers["content-encoding"] == encoding
    assert flow.request.content == BODY


async def test_a_body_that_is_no_request_any_more_is_refused(looping: Hooks) -> None:
    flow = await looping.ask(request(f"https://{GOOGLE}{PATH}", BODY))
    flow.request.content = b"no JSON"
    refusal = looping.destination(flow)
    assert isinstance(refusal, LoopAnswer)
    head, _ = await refusal.take()
    assert isinstance(head, Head)
    assert head.status == 400
    assert refusal.over
    assert not runners(looping)
    assert flow.request.content == b"no JSON"


@pytest.mark.parametrize("hook", ["responseheaders", "error"])
async def test_a_flow_that_another_addon_answers_or_kills_leaves_nothing_behind(looping: Hooks, hook: str) -> None:
    for _ in range(20):
        flow = await looping.ask(request(f"https://{GOOGLE}{PATH}", BODY))
        flow.response = response(b"mine")
        await looping.call(hook, flow)
        await looping.call("response", flow)
        assert flow.response.content == b"mine"
        assert flow not in diverted
    assert not runners(looping)


def connections_of(looping: Hooks) -> OwnedConnections:
    """The connections of the loop that was begun last, for a request to Google."""
    upstream, address = runners(looping)[-1].upstream, runners(looping)[-1].address
    assert isinstance(upstream.watcher, LoopWatcher)
    via = upstream.watcher.via
    found = upstream.transport(Outgoing(address.method, address.url, address.headers, b"", proxy_url(via)))
    assert isinstance(found, OwnedConnections)
    return found


def transport_of(looping: Hooks) -> Any:
    """What the next request of that loop is sent through."""
    return connections_of(looping)._make()


async def test_loops_share_connections_until_an_option_of_connections_changes(looping: Hooks) -> None:
    found = []
    for http2 in (True, True, False):
        if http2 != looping.options.http2:
            looping.options.update(http2=http2)
            await looping.call("configure", {"http2"})
        await begun(looping, request(f"https://{GOOGLE}{PATH}", BODY))
        found.append(connections_of(looping))
        assert transport_of(looping)._pool._http2 is http2
    assert found[0] is found[1]
    assert found[1] is not found[2]


@pytest.mark.parametrize(
    ("certs", "name", "is_trusted"),
    [("one.pem", "one.pem", True), (".", f"{GOOGLE}.pem", True), (".", "elsewhere.pem", False)],
    ids=["a file", "the host's file in a folder", "a folder without the host's"],
)
async def test_a_certificate_is_shown_as_mitmproxy_would(
    looping: Hooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certs: str, name: str, is_trusted: bool
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", lambda _, file: loaded.append(file))
    (tmp_path / name).touch()
    looping.options.update(client_certs=str(tmp_path / certs))
    await begun(looping, request(f"https://{GOOGLE}{PATH}", BODY))
    transport_of(looping)
    assert [Path(file) for file in loaded] == [tmp_path / name] * is_trusted


async def test_an_upstream_proxy_over_tls_is_checked_as_upstreams_are(looping: Hooks) -> None:
    looping.options.add_option("upstream_auth", str | None, "someone:secret", "of an addon of mitmproxy's")
    looping.options.update(ssl_insecure=True)
    flow = request(f"https://{GOOGLE}{PATH}", BODY, mode="upstream:https://proxy.test:8443")
    flow.server_conn.via = ("https", ("proxy.test", 8443))
    await begun(looping, flow)
    pool = transport_of(looping)._pool
    assert pool._proxy_ssl_context.verify_mode is ssl.CERT_NONE
    assert dict(pool._proxy_headers)[b"Proxy-Authorization"].startswith(b"Basic ")
