"""The file of CAs for clients of the regular proxy: mitmproxy's CA and those that they trusted before.

A client sees mitmproxy's certificates for models' hosts and the servers' own for all others, and most variables name
the only file that it trusts.
"""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from addon.cli import output
from addon.state_folder import make_folder, state_folder, write_file

_NAME = "ca-bundle.pem"
VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables that replace a client's CAs. NODE_EXTRA_CA_CERTS, by contrast, adds to Node's own."""


def ca_bundle(ca: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Write the file, if the CA exists. Returns its path, or the CA's. Ends the command if it cannot be written."""
    bundle = state_folder() / _NAME
    try:
        own = ca.read_text()
        named = [Path(value) for name in VARIABLES if (value := environ.get(name))]
        trusted = [path for path in named if path not in (bundle, ca)] or [_usual()]
        texts = [path.read_text("utf-8", "replace") for path in dict.fromkeys(trusted) if path.is_file()]
    except FileNotFoundError:
        return ca
    except OSError as error:
        output.fail(f"{error.filename}: {error.strerror}")
    try:
        make_folder(bundle.parent)
        write_file(bundle, "\n".join([own, *texts]))
    except OSError as error:
        output.fail(str(error))
    return bundle


def _usual() -> Path:
    """The system's CAs, else certifi's."""
    found = ssl.get_default_verify_paths().openssl_cafile
    for path in (found, "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"):
        if Path(path).is_file():
            return Path(path)
    import certifi

    return Path(certifi.where())
