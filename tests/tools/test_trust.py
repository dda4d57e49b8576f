"""Which certificate authorities tools' servers are verified with."""

from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from addon.tools.http_connections import Egress, EgressTransport, trust
from addon.tools.mcp_transport import BoundedTransport


@pytest.mark.parametrize(
    "transport", [lambda: BoundedTransport(1), lambda: EgressTransport(Egress()).transport_for("x")]
)
def test_tools_of_all_kinds_trust_the_system_whatever_the_shell_names(
    transport: Callable[[], httpx2.AsyncHTTPTransport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each transport read all authorities again, and MCP alone took those of `SSL_CERT_FILE`."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "not there"))
    assert transport()._pool._ssl_context is trust()
