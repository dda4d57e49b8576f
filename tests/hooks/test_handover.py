"""Whether a client has all of an answer."""

import asyncio
import socket

import pytest
from mitmproxy.test import tflow

from addon.hooks import mitmproxy_patches as module
from addon.hooks.mitmproxy_patches import _flushed, _written, on_handover

_MUCH = b"x" * 8_000_000


@pytest.mark.parametrize("reads", [True, False])
async def test_buffered_bytes_are_not_handed_over_before_the_system_has_them(reads: bool) -> None:
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    reader, client = await asyncio.open_connection(sock=theirs)
    writer.write(_MUCH)
    settled = asyncio.get_running_loop().create_future()
    flushing = asyncio.ensure_future(_flushed(writer, settled.set_result))
    await asyncio.sleep(0)
    assert writer.transport.get_write_buffer_size() > 0
    assert not settled.done()
    if reads:
        assert await reader.readexactly(len(_MUCH)) == _MUCH
    else:
        client.transport.abort()
    async with asyncio.timeout(10):
        assert await settled is reads
        await flushing
    client.close()
    writer.close()


async def test_an_answer_is_settled_when_the_write_buffer_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    reader, client = await asyncio.open_connection(sock=theirs)
    monkeypatch.setattr(module, "_writer", lambda client: writer)
    flow, settled = tflow.tflow(), asyncio.get_running_loop().create_future()
    writer.write(_MUCH)
    on_handover[flow] = settled.set_result
    _written(flow)
    assert not settled.done()
    assert await reader.readexactly(len(_MUCH)) == _MUCH
    async with asyncio.timeout(10):
        assert await settled is True
    at_once: list[bool] = []
    on_handover[flow] = at_once.append
    _written(flow)
    assert at_once == [True], "there is nothing to be waited for"
    client.close()
    writer.close()
