"""Real Redis and Valkey servers, one for each run of the tests: each test has its own prefix."""

import contextlib
import functools
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from store.backends.redis import RedisStore
from tests.ports import free_port

REQUIRED = "TOOLGRAFT_REQUIRE_REDIS"
"""An environment variable: a missing server is a failure instead of a skip."""

REDIS = pytest.param("redis", marks=pytest.mark.e2e)
"""A parameter of tests that take a store of each backend."""

_WITH_US = '"$@" & read _; kill -9 $!; wait'
"""A shell script that ends the server with this process, even if that is killed."""

_numbers = itertools.count()
_servers = contextlib.ExitStack()


def need(program: str) -> str:
    """The path of a server's program. Skips the test if it is missing."""
    if (found := shutil.which(program)) is not None:
        return found
    if os.environ.get(REQUIRED):
        pytest.fail(f"{program} is not installed, and {REQUIRED} is set")
    pytest.skip(f"{program} is not installed")


@contextlib.contextmanager
def running(
    program: str, *options: str, port: int | None = None, options_first: bool = False, tls: bool = False
) -> Iterator[int]:
    """A server on a free port, with its files in a separate folder. `options_first`: the options begin with a file."""
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


def answer_of(port: int, *command: str) -> str:
    """The server's answer in the protocol's text."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall((" ".join(command) + "\r\n").encode())
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


def pid_of(port: int) -> int:
    return int(answer_of(port, "INFO", "server").partition("process_id:")[2].split()[0])


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def stopped(port: int) -> Iterator[None]:
    """Stops the server during the block."""
    pid = pid_of(port)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def running_with_replica(*options: str) -> Iterator[tuple[int, int]]:
    """The ports of a primary and its replica."""
    with running(program_under_test(), "--repl-diskless-sync-delay", "0", *options) as primary:
        with running(program_under_test(), "--replicaof", "127.0.0.1", str(primary), *options) as replica:
            deadline = time.monotonic() + 10
            while "state=online" not in answer_of(primary, "INFO", "replication"):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield primary, replica


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
    shared_cluster.cache_clear()


def program_under_test() -> str:
    return os.environ.get("TOOLGRAFT_TEST_REDIS", "redis-server")


def new_url() -> str:
    """The URL of an empty store."""
    return f"redis://127.0.0.1:{shared(program_under_test())}/0?prefix=t{next(_numbers)}"


def port_of(store: RedisStore) -> int:
    ((_, port),) = store.link.address.hosts
    return port


# --- clusters -------------------------------------------------------------------------------------------------


def ask(port: int, *command: Any, **options: Any) -> Any:
    """The raw reply to one command. Raises ResponseError. `options`: of the connection."""
    retry = Retry(NoBackoff(), 0)
    with redis.Redis(host="127.0.0.1", port=port, protocol=2, decode_responses=True, retry=retry, **options) as client:
        client.response_callbacks.clear()
        return client.execute_command(*command)


@contextlib.contextmanager
def running_cluster(program: str, *options: str, replicas: int = 0) -> Iterator[list[int]]:
    """The ports of three primaries, then of as many replicas of the first."""
    flags = "--cluster-enabled", "yes", "--cluster-node-timeout", "1000", *options
    with contextlib.ExitStack() as stack:
        ports, buses = [], []
        for _ in range(3 + replicas):
            buses.append(free_port())
            ports.append(stack.enter_context(running(program, *flags, "--cluster-port", str(buses[-1]))))
        share = 16384 // 3
        for at, port in enumerate(ports):
            ask(port, "CLUSTER", "SET-CONFIG-EPOCH", at + 1)
            if at < 3:
                ask(port, "CLUSTER", "ADDSLOTSRANGE", at * share, (at + 1) * share - 1 if at < 2 else 16383)
            ask(ports[0], "CLUSTER", "MEET", "127.0.0.1", port, buses[at])
        first = ask(ports[0], "CLUSTER", "MYID")
        until(lambda: all(f"cluster_known_nodes:{len(ports)}" in ask(one, "CLUSTER", "INFO") for one in ports))
        until(lambda: all(first in ask(one, "CLUSTER", "NODES") for one in ports))
        for port in ports[3:]:
            ask(port, "CLUSTER", "REPLICATE", first)
        until(lambda: all(is_ready(one, replicas) for one in ports))
        yield ports


def is_ready(port: int, replicas: int) -> bool:
    """Whether this node knows an owner of each slot, and all replicas of the first."""
    described = [nodes for _, _, *nodes in ask(port, "CLUSTER", "SLOTS")]
    whole = "cluster_state:ok" in ask(port, "CLUSTER", "INFO")
    return whole and len(described) == 3 and sum(len(nodes) - 1 for nodes in described) == replicas


def until(is_so: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError("this did not happen in time")
        time.sleep(0.02)


@functools.cache
def shared_cluster(program: str) -> list[int]:
    return _servers.enter_context(running_cluster(program))


def new_cluster_url() -> str:
    """The URL of an empty store in a cluster."""
    ports = shared_cluster(program_under_test())
    return f"redis+cluster://127.0.0.1:{ports[0]}?prefix=t{next(_numbers)}"
