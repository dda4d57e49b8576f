"""TLS to Redis, with a user of its own: its certificate is checked."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from store.base import StoreUnusable
from store.factory import open_url
from store.models import Policy
from tests.ports import free_port
from tests.store import servers


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration with a certificate for 127.0.0.1, `ca.pem`, and users for the keys of one prefix."""
    key, certificate = tmp_path / "key.pem", tmp_path / "ca.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-keyout", key, "-out", certificate, "-subj", "/CN=h", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True,
        capture_output=True,
    )  # fmt: skip
    path = tmp_path / "redis.conf"
    path.write_text(
        f"tls-auth-clients no\ntls-ca-cert-file {certificate}\ntls-cert-file {certificate}\ntls-key-file {key}\n"
        "user me on >s3cr3t ~mine:* ~{mine}:* &* +@all\nuser default off\n"
        "user few on >s3cr3t ~{mine}:* +@all -@admin -@dangerous +info +cluster|slots +asking\n"
    )
    return path


async def test_a_connection_with_tls_checks_the_server_and_names_a_user(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLGRAFT_REDIS_PASSWORD", "s3cr3t")
    port, certificate = free_port(), config.with_name("ca.pem")
    with servers.running(servers.program_under_test(), str(config), options_first=True, port=port, tls=True):
        url = f"rediss://me@127.0.0.1:{port}/0?prefix=mine"
        store = open_url(f"{url}&ca={certificate}", ttl=60)
        await store.open()
        await store.put_policy("one", Policy())
        assert await store.session("one") is not None
        await store.close()
        for refused in (url, f"rediss://127.0.0.1:{port}?ca={certificate}", f"{url}x&ca={certificate}"):
            with pytest.raises(StoreUnusable) as error:
                await open_url(refused, ttl=60).open()
            assert "s3cr3t" not in str(error.value)


async def test_a_server_whose_certificate_has_another_name_is_refused(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLGRAFT_REDIS_PASSWORD", "s3cr3t")
    rest = f"?prefix=mine&ca={config.with_name('ca.pem')}"
    with servers.running(
        servers.program_under_test(), str(config), options_first=True, port=free_port(), tls=True
    ) as port:
        with pytest.raises(StoreUnusable, match=r"CERTIFICATE_VERIFY_FAILED.*'localhost'"):
            await open_url(f"rediss://me@localhost:{port}{rest}", ttl=60).open()
        store = open_url(f"rediss://me@127.0.0.1:{port}{rest}", ttl=60)
        await store.open()
        await store.close()


async def test_a_cluster_is_asked_over_tls_by_a_user_with_few_rights(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLGRAFT_REDIS_PASSWORD", "s3cr3t")
    certificate = config.with_name("ca.pem")
    options = [str(config), "--cluster-enabled", "yes", "--tls-cluster", "yes"]
    options += ["--cluster-port", str(free_port())]
    with servers.running(
        servers.program_under_test(), *options, options_first=True, port=free_port(), tls=True
    ) as port:
        login: dict[str, Any] = {"username": "me", "password": "s3cr3t", "ssl": True, "ssl_ca_certs": str(certificate)}
        servers.ask(port, "CLUSTER", "ADDSLOTSRANGE", 0, 16383, **login)
        ready = lambda: "cluster_state:ok" in servers.ask(port, "CLUSTER", "INFO", **login)  # noqa: E731
        await asyncio.to_thread(servers.until, ready)
        store = open_url(f"rediss+cluster://few@127.0.0.1:{port}?prefix=mine&ca={certificate}", ttl=60)
        await store.open()
        await store.put_policy("one", Policy())
        assert await store.session("one") is not None
        await store.close()
