"""One mitmdump and its upstreams for all tests without special options; sessions keep them apart."""

import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import processes
from tests.e2e.proxies import MCP_SERVER, MCP_STDIO, Proxy, Session, looping_proxy, mcp_file, new_session
from tests.e2e.upstreams import Canned, Gemini
from tests.ports import free_port

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # mitmproxy's filters call pyparsing by its old names
    import tests.flows.recordings  # noqa: F401

FOLDER = Path(__file__).parent


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.e2e)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report: Any = yield
    if report.failed:
        for process in processes.live:
            output = "\n".join(process.lines[-80:])
            report.sections.append((f"{process.name}, pid {process.pid}", output))
    return report


@pytest.fixture(scope="session")
def strict() -> Iterator[Gemini]:
    with Gemini() as gemini:
        yield gemini


@pytest.fixture(scope="session")
def raw() -> Iterator[Canned]:
    with Canned() as canned:
        yield canned


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, strict: Gemini, raw: Canned) -> Iterator[Proxy]:
    """A reverse proxy to the strict server, one to the raw server, and a regular proxy with Google's hosts redirected
    to the strict server."""
    proxy = Proxy(tmp_path_factory.mktemp("proxy"), strict.url, raw.url, max_body="100000")
    yield proxy
    proxy.stop()


@pytest.fixture(scope="session")
def shared_looper(tmp_path_factory: pytest.TempPathFactory, strict: Gemini, raw: Canned) -> Iterator[Proxy]:
    """As `shared`, with tools: a Python file, and MCP servers with the prefixes `local_` (stdio) and `web_` (HTTP)."""
    folder = tmp_path_factory.mktemp("looper")
    port = free_port()
    server = processes.Process("MCP server", [sys.executable, MCP_SERVER, str(port)], processes.environment(folder))
    server.wait_for("running on")
    web = {"url": f"http://127.0.0.1:{port}/mcp", "prefix": "web_"}
    servers = mcp_file(folder, local=MCP_STDIO, web=web)
    proxy = looping_proxy(folder, strict.url, raw.url, mcp=servers, early=FOLDER / "scripts" / "quick.py")
    yield proxy
    proxy.stop()
    server.stop()


@pytest.fixture
def gemini(strict: Gemini) -> Gemini:
    strict.forget()
    return strict


@pytest.fixture
def canned(raw: Canned) -> Canned:
    raw.forget()
    return raw


@pytest.fixture
def proxy(shared: Proxy) -> Iterator[Proxy]:
    """The shared proxy. Checks after each test that nothing has crashed in it."""
    yield from _unhurt(shared)


@pytest.fixture
def looper(shared_looper: Proxy) -> Iterator[Proxy]:
    yield from _unhurt(shared_looper)


@pytest.fixture
def bare(looper: Proxy) -> Session:
    """A session of `looper` without its own tools."""
    return new_session(looper, tools=False)


def _unhurt(proxy: Proxy) -> Iterator[Proxy]:
    mark = proxy.process.mark()
    yield proxy
    output = "\n".join(proxy.process.lines[mark:])
    assert "Traceback" not in output, output
    assert "crashed" not in output, output


@pytest.fixture
def session(proxy: Proxy) -> Session:
    """A session of the shared proxy with the two tools."""
    return new_session(proxy)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Proxy]]:
    """Starts separate proxies for a test."""
    started: list[Proxy] = []

    def starts(*upstreams: str, folder: Path = tmp_path, **more: Any) -> Proxy:
        started.append(Proxy(folder, *upstreams, **more))
        return started[-1]

    yield starts
    for proxy in started:
        proxy.stop()


@pytest.fixture(autouse=True)
def _no_process_outlives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    before = list(processes.live)
    yield
    kept = {"mitmdump"}
    for process in [one for one in processes.live if one not in before and one.name not in kept]:
        process.stop()
