"""The light upstream behind TLS, with a certificate of its own: `python -m bench.tls_upstream --port N`."""

import argparse
import asyncio
import ssl
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509 import DNSName
from mitmproxy.certs import CertStore

from addon.fake_gemini.light import Light
from bench.processes import HOST


def certificate() -> ssl.SSLContext:
    """For `HOST`."""
    with tempfile.TemporaryDirectory() as folder:
        entry = CertStore.from_store(folder, "bench", 2048).get_cert(HOST, [DNSName(HOST)])
        file = Path(folder) / "upstream.pem"
        key = entry.privatekey.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        file.write_bytes(key + entry.cert.to_pem())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
    return context


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    async with await loop.create_server(Light, "127.0.0.1", port, ssl=certificate()) as server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    asyncio.run(_serve(parser.parse_args().port))
