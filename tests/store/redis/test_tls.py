"""TLS to Redis, with a user of its own: its certificate is checked."""

import subprocess
from pathlib import Path

import pytest

from store.base import StoreUnusable
from store.factory import open_url
from store.models import Policy
from tests.store import servers


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration with a certificate for 127.0.0.1, `ca.pem`, and a user for the keys of one prefix."""
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
    )
    return path


async def test_a_connection_with_tls_checks_the_server_and_names_a_user(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLGRAFT_REDIS_PASSWORD", "s3cr3t")
    port, certificate = servers.free_port(), config.with_name("ca.pem")
    with servers.running("redis-server", str(config), options_first=True, port=port, tls=True):
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
