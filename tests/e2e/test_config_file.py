"""A proxy that is started with a toolgraft.toml alone."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import Process, environment
from tests.e2e.proxies import MCP_SERVER, TOOLS, Control
from tests.e2e.upstreams import Gemini
from tests.ports import free_port

CONFIG = """
modes = ["regular@127.0.0.1:{regular}", "reverse:{upstream}@127.0.0.1:{reverse}"]

[options]
tools = ["{tools}"]
control = "127.0.0.1:0"
drain_timeout = 0
log = "mitmproxy"

[mcpServers.local]
command = "{python}"
args = ["{server}", "stdio"]
prefix = "local_"

[sessions.work]
delivery = "placeholder"
[[sessions.work.tools]]
name = "by_hand"
"""


class Served:
    """`toolgraft serve --config FILE`."""

    def __init__(self, folder: Path, upstream: str, *arguments: str) -> None:
        self.config = folder / "toolgraft.toml"
        self.reverse = free_port()
        self.config.write_text(
            CONFIG.format(
                regular=free_port(),
                reverse=self.reverse,
                upstream=upstream,
                tools=TOOLS,
                python=sys.executable,
                server=MCP_SERVER,
            )
        )
        line = [sys.executable, "-P", "-m", "addon", "serve", "--config", str(self.config)]
        state = folder / "state"
        environ = environment(folder, TOOLGRAFT_HOME=str(state))
        self.process = Process("mitmdump", [*line, "--set", f"confdir={folder / 'conf'}", *arguments], environ)
        self.process.wait_for(r"session \S+, store ")
        self.control = Control((state / "control.url").read_text().strip(), (state / "token").read_text().strip())


@pytest.fixture
def served(tmp_path: Path, gemini: Gemini) -> Iterator[Served]:
    one = Served(tmp_path, gemini.url)
    yield one
    one.control.close()
    one.process.stop()


@pytest.mark.smoke
def test_the_file_gives_ports_options_tools_servers_and_sessions(served: Served) -> None:
    assert f"Gemini at http://127.0.0.1:{served.reverse}," in served.process.log
    assert f"settings of {served.config}" in served.process.log
    shared = served.control.ask("GET", "/v1/sessions/work/tools")["shared"]
    assert {"weather", "hour", "local_add"} <= {one["name"] for one in shared}
    assert served.control.ask("GET", "/v1/sessions/work")["delivery"] == "placeholder"
    tools = served.control.ask("GET", "/v1/sessions/work/tools")["tools"]
    assert [one["name"] for one in tools[0]["functionDeclarations"]] == ["by_hand"]
    items = {row["name"]: row for row in served.control.ask("GET", "/v1/config")["items"]}
    assert items["graft_log"] == {"name": "graft_log", "value": "mitmproxy", "source": str(served.config)}
