"""A copy of the server's file is a backup: a server that starts with it has the store as it was."""

import shutil
from pathlib import Path

import pytest

from store.backends.redis import RedisStore
from store.base import CursorLost
from store.factory import open_url
from tests.store import servers
from tests.store.records import save

pytestmark = pytest.mark.e2e


async def test_a_copy_of_the_server_s_file_is_restored_as_docs_say(tmp_path: Path) -> None:
    program, earlier, later = servers.program_under_test(), tmp_path / "earlier", tmp_path / "later"
    for folder in (earlier, later):
        folder.mkdir()
    with servers.running(program, "--dir", str(earlier)) as port:
        store = open_url(f"redis://127.0.0.1:{port}", ttl=1000.0)
        assert isinstance(store, RedisStore)
        await store.open()
        await save(store, "t1", created_at=store.times().wall)
        assert servers.ask(port, "SAVE") == "OK"
        shutil.copy(earlier / "dump.rdb", later)
        await save(store, "t2", created_at=store.times().wall)
        last, secret = await store.last_event_id(), store.secret
        await store.close()
    with servers.running(program, "--dir", str(later), "--appendonly", "no") as port:
        assert servers.ask(port, "CONFIG", "SET", "appendonly", "yes") == "OK"
        assert servers.ask(port, "HDEL", "{toolgraft}:meta", "epoch") == 1
        restored = open_url(f"redis://127.0.0.1:{port}", ttl=1000.0)
        assert isinstance(restored, RedisStore)
        await restored.open()
        assert [turn.turn_id for turn in (await restored.turns("one")).items] == ["t1"]
        assert restored.secret == secret, "placeholders of chats before the backup stay valid"
        await save(restored, "t3", created_at=restored.times().wall)
        with pytest.raises(CursorLost):
            await restored.events(after=last)
        await restored.close()
