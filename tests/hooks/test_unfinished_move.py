"""A store that only some records have been moved to yet is not used."""

import contextlib
from pathlib import Path

import pytest

from addon.hooks.runtime import Runtime
from addon.hooks.upstream_factory import MitmUpstreamFactory
from store.base import StoreUnusable
from store.factory import open_url
from tests.hooks.harness import Hooks
from tests.store import servers


@pytest.mark.parametrize("backend", ["sqlite", servers.REDIS])
async def test_the_proxy_does_not_start_on_an_unfinished_move(hooks: Hooks, tmp_path: Path, backend: str) -> None:
    url = servers.new_url() if backend == "redis" else f"sqlite:///{tmp_path / 'new.db'}"
    runtime = hooks.lifecycle.runtime
    assert runtime is not None
    settings = runtime.settings.model_copy(update={"store": url, "control": None, "state": tmp_path})
    for note in ("{}", ""):
        store = open_url(url, ttl=1000)
        await store.open()
        await store.note_move(note)
        await store.close()
        async with contextlib.AsyncExitStack() as undo:
            undo.enter_context(
                pytest.raises(StoreUnusable, match="was not finished") if note else contextlib.nullcontext()
            )
            started = Runtime.start(settings, hooks.part(MitmUpstreamFactory), {})
            undo.push_async_callback(started.stop)
            await started.serve()
