"""Which requests are sent to a loop, and that their flows are what they were when the answer comes."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from addon.loop.server import SECRET_HEADER
from store.models import Policy
from tests.hooks.harness import GOOGLE, PATH, Hooks, request, response
from tests.loop.conftest import until

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
    hooks.lifecycle.runtime.grafter.scopes.share([tool.declaration for tool in tools.values()])
    return hooks


@pytest.mark.parametrize(
    ("path", "body", "policy", "diverted"),
    [
        (PATH, BODY, {}, True),
        (STREAM, BODY, {}, True),
        (PATH, BODY, {"delivery": "loop"}, True),
        (PATH, BODY, {"delivery": "placeholder"}, False),
        (PATH, BODY, {"delivery": "passthrough"}, False),
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
        "countTokens",
        "cachedContents",
        "output in JSON",
        "an older model",
        "not understood",
    ],
)
async def test_what_may_lead_to_calls_that_the_proxy_runs_goes_to_a_loop(
    looping: Hooks, path: str, body: bytes, policy: dict[str, str], diverted: bool
) -> None:
    await looping.store.put_policy("default", Policy.model_validate(policy))
    flow = await looping.ask(request(f"https://{GOOGLE}{path}", body))
    assert (flow.request.host == "127.0.0.1") is diverted
    assert (SECRET_HEADER.decode() in flow.request.headers) is diverted


async def test_a_flow_is_what_it_was_when_its_answer_comes(looping: Hooks) -> None:
    flow = request(f"https://{GOOGLE}{PATH}", BODY, {"x-goog-api-key": "k", "Proxy-Connection": "keep-alive"})
    await looping.ask(flow)
    runtime = looping.lifecycle.runtime
    assert runtime is not None
    ((runner, _),) = runtime.loops._waiting.values()
    sent = [name.lower() for name, _ in runner.address.headers]
    assert runner.address.url == f"https://{GOOGLE}{PATH}"
    assert b"x-goog-api-key" in sent
    assert not {b"proxy-connection", b"content-length", b"host", SECRET_HEADER} & set(sent)
    await looping.answer(flow, response(b"{}"))
    assert flow.request.url == f"https://{GOOGLE}{PATH}"
    assert flow.request.content == BODY
    assert SECRET_HEADER.decode() not in flow.request.headers


async def test_a_flow_is_what_it_was_while_its_loop_runs(looping: Hooks) -> None:
    flow = await looping.ask(request(f"https://{GOOGLE}{STREAM}", BODY))
    assert looping.lifecycle.runtime is not None
    ((_, received),) = looping.lifecycle.runtime.loops._waiting.values()
    received()
    assert flow.request.url == f"https://{GOOGLE}{STREAM}"
    assert flow.request.content == BODY
    assert SECRET_HEADER.decode() not in flow.request.headers
    flow.request.headers["seen"] = "1"
    events = response(b"data: {}\r\n\r\n", "text/event-stream")
    assert await looping.answer(flow, events, [b"data: ", b"{}\r\n\r\n"]) == b"data: {}\r\n\r\n"
    assert flow.response is not None
    assert flow.response.content == b"data: {}\r\n\r\n"
    assert flow.request.headers["seen"] == "1", "it is put back once"


async def test_a_flow_that_fails_on_its_way_leaves_nothing_behind(looping: Hooks) -> None:
    flow = await looping.ask(request(f"https://{GOOGLE}{PATH}", BODY))
    runtime = looping.lifecycle.runtime
    assert runtime is not None
    assert runtime.loops._waiting
    await looping.call("error", flow)
    assert not runtime.loops._waiting
    assert flow.request.url == f"https://{GOOGLE}{PATH}"


def client_of(looping: Hooks) -> Any:
    """The HTTP client of the loop that was diverted last."""
    assert looping.lifecycle.runtime is not None
    return list(looping.lifecycle.runtime.loops._waiting.values())[-1][0].upstream.client


async def test_loops_share_a_client_until_an_option_of_its_connections_changes(looping: Hooks) -> None:
    found = []
    for http2 in (True, True, False):
        if http2 != looping.options.http2:
            looping.options.update(http2=http2)
            await looping.call("configure", {"http2"})
        await looping.ask(request(f"https://{GOOGLE}{PATH}", BODY))
        found.append(client_of(looping))
    assert found[0] is found[1]
    assert found[1] is not found[2]
    assert [one._transport._pool._http2 for one in found[1:]] == [True, False]
    assert not any(one.is_closed for one in found), "a loop may still be on its way"
    await looping.done()
    await until(lambda: all(one.is_closed for one in found))


@pytest.mark.parametrize(
    ("certs", "name", "shown"),
    [("one.pem", "one.pem", True), (".", f"{GOOGLE}.pem", True), (".", "elsewhere.pem", False)],
    ids=["a file", "the host's file in a folder", "a folder without the host's"],
)
async def test_a_certificate_is_shown_as_mitmproxy_would(
    looping: Hooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certs: str, name: str, shown: bool
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", lambda _, file: loaded.append(file))
    (tmp_path / name).touch()
    looping.options.update(client_certs=str(tmp_path / certs))
    await looping.ask(request(f"https://{GOOGLE}{PATH}", BODY))
    assert [Path(file) for file in loaded] == [tmp_path / name] * shown


async def test_an_upstream_proxy_over_tls_is_checked_as_upstreams_are(looping: Hooks) -> None:
    looping.options.add_option("upstream_auth", str | None, "someone:secret", "of an addon of mitmproxy's")
    looping.options.update(ssl_insecure=True)
    await looping.ask(request(f"https://{GOOGLE}{PATH}", BODY, mode="upstream:https://proxy.test:8443"))
    pool = next(iter(client_of(looping)._mounts.values()))._pool
    assert pool._proxy_ssl_context.verify_mode is ssl.CERT_NONE
    assert dict(pool._proxy_headers)[b"Proxy-Authorization"].startswith(b"Basic ")
