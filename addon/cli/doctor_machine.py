"""Checks of this machine and this shell: Python, ports, network, environment variables, and trust in mitmproxy's CA."""

import contextlib
import os
import socket
import ssl
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

from addon.cli.doctor import Finding
from addon.cli.env import BASE_URLS, covers_models
from addon.urls import is_loopback, redacted

_OLDEST = (3, 13)
_PORTS = {
    8080: "start the proxy with --mode regular@PORT",
    8081: "start the proxy with --mode reverse:https://generativelanguage.googleapis.com@PORT",
    8741: "start the proxy with --set graft_control=127.0.0.1:PORT",
}
"""The ports of a proxy that is started without options, each with how to change it."""
_TIMEOUT = 3.0


def python() -> Iterator[Finding]:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < _OLDEST:
        yield Finding("python", "wrong", f"Python {found} is too old", "install Python 3.13 or newer")
        return
    try:
        yield Finding("python", "ok", f"Python {found}, mitmproxy {version('mitmproxy')}")
    except PackageNotFoundError:
        yield Finding("python", "wrong", "mitmproxy is not installed", "run ./run_proxy.sh, which installs it")


def ports(own: Sequence[int]) -> Iterator[Finding]:
    """`own`: the ports of the running proxy, which needs no others; empty if none runs."""
    if own:
        yield Finding("ports", "ok", f"the proxy listens at the ports {', '.join(map(str, sorted(own)))}")
        return
    for port, other in _PORTS.items():
        if _is_free(port):
            yield Finding("ports", "ok", f"port {port} is free")
        else:
            fix = f"stop that program, or {other}"
            yield Finding("ports", "wrong", f"port {port} is taken by {_owner(port) or 'another program'}", fix)


def upstream(url: str) -> Iterator[Finding]:
    """Connect to the model's host."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    address = _look_up(host, port)
    if isinstance(address, str):
        why = f"{host} cannot be looked up ({address}): there is no network, or no DNS"
        fix = "without a network, use `toolgraft demo`, `toolgraft fake-gemini` or graft_redirect"
        yield Finding("upstream", "unknown", why, fix)
        return
    try:
        socket.create_connection(address, _TIMEOUT).close()
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        fix = "check the firewall; behind an upstream proxy, start with --mode upstream:http://HOST:PORT"
        yield Finding("upstream", "wrong", f"{host}:{port} cannot be reached: {why}", fix)
    else:
        yield Finding("upstream", "ok", f"{host}:{port} can be reached")


def _look_up(host: str, port: int) -> tuple[str, int] | str:
    """The first address of a host, or an error message. Has a time limit, since the system's may be half a minute."""
    found: list[tuple[str, int] | str] = []

    def look_up() -> None:
        try:
            first = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]
            found.append((str(first[0]), port))
        except (OSError, UnicodeError) as error:
            found.append(str(getattr(error, "strerror", None) or error))

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(_TIMEOUT)
    return found[0] if found else f"no answer within {_TIMEOUT:g} s"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        if os.name == "posix":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the proxy binds it
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _owner(port: int) -> str:
    """The process that listens at a port, if Linux shows it to this user."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for descriptor in Path("/proc").glob("[0-9]*/fd/*") if sockets else ():
        with contextlib.suppress(OSError):
            if os.readlink(descriptor) in sockets:
                process = descriptor.parent.parent
                return f"{(process / 'comm').read_text().strip()} (process {process.name})"
    return "a process of another user" if sockets else ""


def _listening(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy")
_KEYS = ("GOOGLE_API_KEY", "GEMINI_API_KEY")


def variables(environ: Mapping[str, str], reverse: list[str], regular: list[str]) -> Iterator[Finding]:
    """`reverse`, `regular`: the URLs of the running proxy, or of the default ports."""
    yield from _base_urls(environ, reverse)
    yield from _proxies(environ, regular)
    yield from _exceptions(environ, regular)
    if environ.get("GOOGLE_GENAI_USE_VERTEXAI", "").lower() in ("1", "true"):
        note = "GOOGLE_GENAI_USE_VERTEXAI is set: google-genai uses Vertex AI, with GOOGLE_VERTEX_BASE_URL"
        yield Finding("environment", "note", note)
    if url := environ.get("TOOLGRAFT_URL"):
        note = f"TOOLGRAFT_URL is set: commands use the proxy at {redacted(url)}"
        yield Finding("environment", "note", note, "for the proxy on this machine: unset TOOLGRAFT_URL")


def keys(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Keys are never printed."""
    found = {name: value for name in _KEYS if (value := environ.get(name, ""))}
    for name, value in found.items():
        if value != value.strip() or not value.isprintable() or not value.isascii():
            message = f"{name} has spaces or characters that no key has"
            yield Finding("key", "wrong", message, f"copy the key again, and export {name}")
            return
    if not found:
        message = "neither GEMINI_API_KEY nor GOOGLE_API_KEY is set: each client needs its own key or login"
        yield Finding("key", "note", message, "export GEMINI_API_KEY before ./run_proxy.sh, for the front doors")
    elif len(set(found.values())) > 1:
        message = "GOOGLE_API_KEY and GEMINI_API_KEY differ: google-genai uses the former, the front doors the latter"
        yield Finding("key", "wrong", message, "unset one of the two")
    else:
        yield Finding("key", "ok", f"{' and '.join(found)} {'is' if len(found) == 1 else 'are'} set")


def _base_urls(environ: Mapping[str, str], reverse: list[str]) -> Iterator[Finding]:
    for name in BASE_URLS:
        if not (value := environ.get(name)):
            continue
        if _place(value) in map(_place, reverse):
            yield Finding("environment", "ok", f"{name} points to the proxy")
        else:
            fix = f'eval "$(toolgraft env)", or unset {name} if the client uses --proxy'
            yield Finding("environment", "wrong", f"{name} points elsewhere: {redacted(value)}", fix)


def _proxies(environ: Mapping[str, str], regular: list[str]) -> Iterator[Finding]:
    for name in _PROXIES:
        if not (value := environ.get(name)):
            continue
        if _place(value) in map(_place, regular):
            yield Finding("environment", "ok", f"{name} points to the proxy")
        elif name.upper() == "HTTP_PROXY" and "127.0.0.1" not in _no_proxy(environ):
            message = f"{name} is another proxy ({redacted(value)}), to which clients may send requests for base URLs"
            yield Finding("environment", "wrong", message, "export NO_PROXY=127.0.0.1,localhost")
        else:
            fix = 'for the regular proxy: eval "$(toolgraft env --proxy)"'
            yield Finding("environment", "note", f"{name} is another proxy: {redacted(value)}", fix)


def _exceptions(environ: Mapping[str, str], regular: list[str]) -> Iterator[Finding]:
    uses_proxy = any(_place(environ.get(name, "")) in map(_place, regular) for name in _PROXIES if environ.get(name))
    for pattern in _no_proxy(environ) if uses_proxy else ():
        if covers_models(pattern):
            message = f"NO_PROXY has {pattern!r}: clients bypass the proxy"
            yield Finding("environment", "wrong", message, f"remove {pattern!r} from NO_PROXY and no_proxy")


def _no_proxy(environ: Mapping[str, str]) -> list[str]:
    texts = f"{environ.get('NO_PROXY', '')},{environ.get('no_proxy', '')}".split(",")
    return list(dict.fromkeys(text.strip().lower() for text in texts if text.strip()))


def _place(url: str) -> tuple[str, int]:
    """Host and port, with one name for this machine."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return url, 0
    return "127.0.0.1" if is_loopback(host) else host, port or (443 if parts.scheme == "https" else 80)


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
