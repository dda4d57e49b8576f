"""TLS for test servers."""

import ssl
from pathlib import Path

from mitmproxy.certs import CertStore


def secure(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's own context, and one for clients that trust any server."""
    CertStore.create_store(folder, "test", 2048)
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(folder / "test-ca.pem")
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    return own, trusting
