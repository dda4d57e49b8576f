"""Checks whether mitmproxy's CA is trusted, which clients of the regular proxy need."""

import ssl
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from addon.cli.doctor.finding import Finding

_VARIABLES = {
    "SSL_CERT_FILE": "Python (httpx, google-genai), Go, Ruby",
    "REQUESTS_CA_BUNDLE": "Python's requests",
    "NODE_EXTRA_CA_CERTS": "Node",
}
_SYSTEM = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
_ENV = 'eval "$(toolgraft env --proxy)"'
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def ca(path: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
    """`path`: the file of mitmproxy's CA."""
    own = _certificates(path)
    if not own:
        message = f"{path} does not exist yet, or holds no certificate: only clients of the regular proxy need it"
        yield Finding("ca", "note", message, "start the proxy once, which makes it")
        return
    yield Finding("ca", "ok", f"mitmproxy's CA is {path}")
    for name, users in _VARIABLES.items():
        yield from _variable(name, users, environ.get(name, ""), path, own)
    if _is_in_bundle(own):
        yield Finding("ca", "ok", "trusted by Python's certifi")
    if sys.platform == "linux":
        is_trusted = any(own <= _certificates(Path(bundle)) for bundle in _SYSTEM)
        message = "trusted by the system" if is_trusted else "not trusted by the system: few clients need that"
        fix = "" if is_trusted else f"copy {path} to /usr/local/share/ca-certificates/mitmproxy.crt, and run "
        yield Finding("ca", "ok" if is_trusted else "note", message, fix and f"{fix}update-ca-certificates")
    else:
        yield Finding("ca", "unknown", f"whether the system's store trusts it is not checked on {sys.platform}")


def _variable(name: str, users: str, value: str, path: Path, own: set[bytes]) -> Iterator[Finding]:
    if not value:
        yield Finding("ca", "note", f"{name} is not set: {users} would not trust it", f"for the regular proxy: {_ENV}")
    elif not (found := _certificates(Path(value))):
        yield Finding("ca", "wrong", f"{name} names a file without certificates: {value}", f"unset {name}, or {_ENV}")
    elif own <= found:
        yield Finding("ca", "ok", f"trusted by {users} ({name})")
    elif Path(value).name == path.name:
        yield Finding("ca", "wrong", f"{name} names another mitmproxy's CA: {value}", _ENV)
    else:
        yield Finding("ca", "note", f"{name} names other certificates: {value}", f"for the regular proxy: {_ENV}")


def _is_in_bundle(own: set[bytes]) -> bool:
    import certifi

    return own <= _certificates(Path(certifi.where()))


def _certificates(path: Path) -> set[bytes]:
    """The certificates of a PEM file; none if it cannot be read."""
    try:
        text = path.expanduser().read_text("ascii", "ignore")
    except OSError:
        return set()
    found = set()
    for block in text.split(_BEGIN)[1:]:
        try:
            found.add(ssl.PEM_cert_to_DER_cert(f"{_BEGIN}{block.partition(_END)[0]}{_END}\n"))
        except ValueError:
            continue
    return found
