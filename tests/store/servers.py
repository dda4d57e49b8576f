"""Real Redis and Valkey servers, one for each run of the tests: each test has a prefix of its own."""

import contextlib
import functools
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

import pytest

from store.backends.redis import RedisStore

REQUIRED = "TOOLGRAFT_REQUIRE_REDIS"
"""An environment variable: a missing server is a failure instead of a skip."""

_WITH_US = '"$@" & read _; kill -9 $!; wait'
"""A shell script: the server ends when this process does, however that ends."""

_numbers = itertools.count()
_servers = contextlib.ExitStack()


def need(program: str) -> str:
    """The path of a server's program. Skips the test if it is missing."""
    if (found := shutil.which(program)) is not None:
        return found
    if os.environ.get(REQUIRED):
        pytest.fail(f"{program} is not installed, and {REQUIRED} is set")
    pytest.skip(f"{program} is not installed")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def running(
    program: str, *options: str, port: int | None = None, options_first: bool = False, tls: bool = False
) -> Iterator[int]:
    """A server on a free port, with its files in a folder of its own. `options_first`: they begin with a file."""
    port = port or free_port()
    with tempfile.TemporaryDirectory(prefix="toolgraft-redis-", ignore_cleanup_errors=True) as folder:
        ports = ["--port", "0", "--tls-port", str(port)] if tls else ["--port", str(port)]
        arguments = [*ports, "--bind", "127.0.0.1", "--dir", folder]
        arguments = [*options, *arguments] if options_first else [*arguments, "--save", "", *options]
        command = ["sh", "-c", _WITH_US, "sh", need(program), *arguments]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            try:
                _wait(port, process)
                yield port
            finally:
                assert process.stdin is not None
                process.stdin.close()
                process.wait()


def _wait(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server on port {port} did not start") from None
            time.sleep(0.02)


@functools.cache
def shared(program: str) -> int:
    """The port of the server that all tests of this process share."""
    return _servers.enter_context(running(program))


def stop_all() -> None:
    _servers.close()
    shared.cache_clear()


def new_url() -> str:
    """The URL of an empty store."""
    program = os.environ.get("TOOLGRAFT_TEST_REDIS", "redis-server")
    return f"redis://127.0.0.1:{shared(program)}/0?prefix=t{next(_numbers)}"


def port_of(store: RedisStore) -> int:
    ((_, port),) = store.link.address.hosts
    return port
