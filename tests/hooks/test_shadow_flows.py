"""A loop's own requests as mitmproxy's addons are told of them."""

import gzip
import logging
from collections.abc import Callable

import pytest
from mitmproxy import exceptions, http
from mitmproxy.test import taddons
from mitmproxy.test.tflow import tclient_conn

from addon.hooks.upstream_flows import LoopWatcher, Origin, ShadowExchange, ShadowFlows
from addon.loop.upstream import Address, Outgoing, Received

ADDRESS = Address("POST", "https://gemini.test/v1beta/models/m:generateContent", [(b"x", b"1")])


class Told:
    """Notes the hooks that it was called with; `parts` are told as well."""

    def __init__(self, *parts: object, raises: Exception | None = None) -> None:
        self.name = f"told-{id(self)}"
        self.addons = parts
        self.raises = raises
        self.heard: list[str] = []

    async def requestheaders(self, flow: http.HTTPFlow) -> None:
        self.heard.append("requestheaders")

    def request(self, flow: http.HTTPFlow) -> None:
        self.heard.append("request")
        if self.raises is not None:
            raise self.raises

    def response(self, flow: http.HTTPFlow) -> None:
        assert flow.response is not None
        self.heard.append(f"response {flow.response.text}")


async def exchange() -> None:
    watcher = LoopWatcher(ShadowFlows(), tclient_conn(), Origin("default", b"{}"), streams=True)
    watched = await watcher.begin(ADDRESS, b"{}")
    await watched.receive_head(200, [(b"content-type", b"text/plain")])
    watched.transform(b"so")
    await watched.close(None)


async def test_every_addon_is_told_and_the_parts_of_addons_too() -> None:
    part = Told()
    first, last = Told(part), Told()
    with taddons.context() as context:
        context.master.addons.add(first, object(), last)
        await exchange()
    assert first.heard == part.heard == last.heard == ["requestheaders", "request", "response so"]


async def test_a_mistake_in_one_addon_is_logged_and_the_next_is_told(caplog: pytest.LogCaptureFixture) -> None:
    first, last = Told(raises=RuntimeError("a mistake")), Told()
    with taddons.context() as context:
        context.master.addons.add(first, last)
        await exchange()
    assert "a mistake" in caplog.text
    assert last.heard == ["requestheaders", "request", "response so"]


async def test_an_addon_may_keep_the_others_from_being_told() -> None:
    first, last = Told(raises=exceptions.AddonHalt()), Told()
    with taddons.context() as context:
        context.master.addons.add(first, last)
        await exchange()
    assert last.heard == ["requestheaders", "response so"]


class Edits:
    """What an addon of the user's does to a request and to its answer."""

    def __init__(
        self, request: Callable[[http.HTTPFlow], object] = bool, response: Callable[[http.HTTPFlow], object] = bool
    ) -> None:
        self._request, self._response = request, response

    def request(self, flow: http.HTTPFlow) -> None:
        self._request(flow)

    def response(self, flow: http.HTTPFlow) -> None:
        assert flow.live, "rules of mitmproxy's act on live flows alone"
        self._response(flow)


async def exchanged_with(addon: object) -> tuple[Outgoing | Received, Received | None, ShadowExchange]:
    """The request that was sent, or the answer given instead; and the answer that the loop got, if it was sent."""
    watcher = LoopWatcher(ShadowFlows(), tclient_conn(), Origin("default", b"{}"), streams=False)
    got = None
    with taddons.context() as context:
        context.master.addons.add(addon)
        watched = await watcher.begin(ADDRESS, b'{"a": 1}')
        sent = watched.outgoing
        if isinstance(sent, Outgoing):
            assert await watched.receive_head(200, [(b"x", b"1")]) is None, "it does not stream"
            got = await watched.receive_body(b"so")
        await watched.close(None)
    return sent, got, watched


async def test_the_request_of_a_shadow_flow_is_sent() -> None:
    def edit(flow: http.HTTPFlow) -> None:
        flow.request.method = "PUT"
        flow.request.url = "http://elsewhere.test:81/p?q=1"
        flow.request.headers["x-more"] = "2"
        flow.request.text = "changed"

    sent, _, _ = await exchanged_with(Edits(edit))
    assert isinstance(sent, Outgoing)
    assert (sent.method, sent.url, sent.body) == ("PUT", "http://elsewhere.test:81/p?q=1", b"changed")
    assert dict(sent.headers) == {b"Host": b"elsewhere.test:81", b"x": b"1", b"x-more": b"2"}


async def test_a_body_that_an_addon_compresses_is_sent_compressed() -> None:
    sent, _, _ = await exchanged_with(Edits(lambda flow: flow.request.encode("gzip")))
    assert isinstance(sent, Outgoing)
    assert gzip.decompress(sent.body) == b'{"a": 1}'
    assert dict(sent.headers)[b"content-encoding"] == b"gzip"


async def test_the_response_of_a_shadow_flow_is_what_the_loop_gets() -> None:
    def edit(flow: http.HTTPFlow) -> None:
        assert flow.response is not None
        flow.response.status_code = 201
        flow.response.text = "changed"
        flow.response.encode("gzip")

    _, got, _ = await exchanged_with(Edits(response=edit))
    assert got is not None
    assert (got.status, got.body) == (201, b"changed")
    assert b"content-encoding" not in dict(got.headers)


@pytest.mark.parametrize("encoding", ["gzip", "secret"])
@pytest.mark.parametrize("hook", ["request", "response"])
async def test_an_answer_of_another_addon_that_cannot_be_decompressed_is_an_error_of_the_loops(
    hook: str, encoding: str
) -> None:
    """As answers of `--server-replay`, which arrived in another process."""

    def edit(flow: http.HTTPFlow) -> None:
        flow.response = http.Response.make(200, b"neither", {"x": "1"})
        flow.response.headers["content-encoding"] = encoding

    sent, got, _ = await exchanged_with(Edits(**{hook: edit}))
    given = got or sent
    assert isinstance(given, Received)
    assert given.status == 502
    assert b"cannot be decompressed" in (given.body or b"")


@pytest.mark.parametrize("hook", ["request", "response"])
async def test_a_flow_that_is_killed_is_an_error_of_the_loops(hook: str) -> None:
    sent, got, watched = await exchanged_with(Edits(**{hook: lambda flow: flow.kill()}))
    given = got or sent
    assert isinstance(given, Received)
    assert given.status == 499
    assert not watched.flow.live


def test_the_http_client_says_nothing_of_its_steps_even_where_everything_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert not logging.getLogger("httpcore2.http11").isEnabledFor(logging.DEBUG)
        assert not logging.getLogger("httpx2").isEnabledFor(logging.INFO)
