"""Checks of this machine: Python, the ports of the proxy, and the network."""

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

from addon.cli.doctor.finding import Finding

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
