"""URL → backend."""

import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from store.backends.memory import MemoryStore
from store.backends.redis import RedisStore
from store.backends.sqlite import SqliteStore
from store.factory import BACKENDS, open_url


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:////var/lib/graft.db", Path("/var/lib/graft.db")),
        ("sqlite:///graft.db", Path.cwd() / "graft.db"),
        ("sqlite:///data/graft.db", Path.cwd() / "data/graft.db"),
        ("sqlite:///~/graft.db", Path.home() / "graft.db"),
        ("sqlite:////a folder/50%.db", Path("/a folder/50%.db")),
    ],
)
def test_a_sqlite_url_has_three_slashes_before_a_relative_path_and_four_before_an_absolute_one(
    url: str, path: Path
) -> None:
    store = open_url(url, ttl=60)
    assert isinstance(store, SqliteStore)
    assert store.path == path
    assert not path.exists(), "constructing touches nothing"


def test_a_store_gets_its_ttl_and_its_clock() -> None:
    store = open_url("memory://", ttl=60, clock=lambda: 17.0)
    assert isinstance(store, MemoryStore)
    assert (store.ttl, store.clock()) == (60, 17.0)


def test_a_store_can_be_asked_for_read_only() -> None:
    store = open_url("sqlite:////graft.db", ttl=60, read_only=True)
    assert isinstance(store, SqliteStore)
    assert store.read_only


@pytest.mark.parametrize(
    "url",
    [
        *("redis://", "redis:///0", "redis://h/x", "redis://h/0/1", "redis://a,b", "redis://h:x", "redis+sentinel://h"),
        *(
            "redis+cluster://h/1",
            "redis+cluster://h/name",
            "redis://h?db=1",
            "redis://h?prefix={x}",
            "redis://me:s3cr3t@h",
        ),
    ],
)
def test_a_redis_url_that_does_not_fit_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(ValueError, match=r"redis\+sentinel://|prefix|TOOLGRAFT_REDIS_PASSWORD|one of") as refused:
        open_url(url, ttl=60)
    assert "s3cr3t" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", (("h", 6379),)),
        ("rediss://me@h:1/2?ca=/etc/ca.pem&prefix=one", (("h", 1),)),
        ("redis+sentinel://a,b:1/name", (("a", 26379), ("b", 1))),
        ("rediss+sentinel://[::1]:5/name/3", (("::1", 5),)),
        ("redis+cluster://a,b:1/0", (("a", 6379), ("b", 1))),
    ],
)
def test_a_redis_url_names_hosts_database_and_prefix(url: str, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLGRAFT_REDIS_PASSWORD", "s3cr3t")
    store = open_url(url, ttl=60)
    assert isinstance(store, RedisStore)
    address = store.link.address
    assert address.hosts == expected
    assert (address.tls, address.service) == (url.startswith("rediss"), "name" if "sentinel" in url else "")
    assert (address.password, "s3cr3t" in address.name) == ("s3cr3t", False)
    if "?" in url:
        assert (address.user, address.database, address.ca, address.prefix) == ("me", 2, "/etc/ca.pem", "one")


@pytest.mark.parametrize("url", ["mysql://me:s3cr3t@h", "graft.db", "", "sqlite:", "SQLITE:///graft.db"])
def test_an_unknown_scheme_is_refused_with_the_schemes_that_fit_and_without_the_url(url: str) -> None:
    with pytest.raises(ValueError, match=r"memory://, sqlite://") as refused:
        open_url(url, ttl=60)
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://host/graft.db", "memory://graft"])
def test_a_url_that_does_not_suit_its_scheme_is_refused_and_says_what_does(url: str) -> None:
    with pytest.raises(ValueError, match=r"use (memory|sqlite):"):
        open_url(url, ttl=60)


def test_a_new_backend_is_one_line_and_is_imported_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "graft_test_backend.py").write_text(
        "from store.backends.memory import MemoryStore\n"
        "class Odd(MemoryStore):\n"
        "    @classmethod\n"
        "    def from_url(cls, url, *, ttl, clock, read_only=False): return cls(ttl=ttl, clock=clock)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(BACKENDS, "odd", "graft_test_backend:Odd")
    open_url("memory://", ttl=60)
    assert "graft_test_backend" not in sys.modules
    assert type(open_url("odd://anything", ttl=60)).__name__ == "Odd"
