"""mitmdump with the addon, as users start it, and its control API."""

import functools
import itertools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from tests.e2e.processes import ROOT, Process, environment, mitmdump
from tests.ports import free_port

Json = dict[str, Any]

DECLARATIONS = [
    {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]},
    },
    {
        "name": "get_time",
        "description": "The hour in a zone.",
        "parameters": {"type": "OBJECT", "properties": {"zone": {"type": "STRING"}}},
    },
]
GOOGLE = (
    "generativelanguage.googleapis.com",
    "aiplatform.googleapis.com",
    "us-central1-aiplatform.googleapis.com",
    "firebasevertexai.googleapis.com",
    "cloudcode-pa.googleapis.com",
)
_names = itertools.count(1)


def mode(upstream: str, port: int) -> str:
    return f"reverse:{upstream}@127.0.0.1:{port}"


def command(folder: Path, *arguments: str, early: Path | None = None, interface: str = "mitmdump") -> list[str | Path]:
    """The command line with a separate configuration folder, and the addon, loaded after an `early` script."""
    first = [word for script in (early, ROOT / "addon" / "entry.py") if script is not None for word in ("-s", script)]
    return [mitmdump().with_name(interface), *first, "--set", f"confdir={folder / 'conf'}", *arguments]


def sets(**options: str) -> list[str]:
    return [word for name, value in options.items() for word in ("--set", f"graft_{name}={value}")]


class Proxy:
    """A regular proxy, and one reverse proxy for each of `upstreams`. Its state is in `folder`, where another proxy can
    continue with it. `arguments`: for mitmdump, unchanged; `early`: a script that is loaded before the addon;
    `interface`: mitmdump or mitmweb."""

    def __init__(
        self,
        folder: Path,
        *upstreams: str,
        arguments: tuple[str, ...] = (),
        environ: Mapping[str, str] | None = None,
        early: Path | None = None,
        interface: str = "mitmdump",
        **options: str,
    ) -> None:
        self.folder = folder
        self._early = early
        self._interface = interface
        self._environ = environ or {}
        self.state = folder / "state"
        ports = [free_port() for _ in range(1 + len(upstreams))]
        regular, *reverse = ports
        self.address = f"127.0.0.1:{regular}"
        self.urls = [f"http://127.0.0.1:{port}" for port in reverse]
        modes = [f"regular@{self.address}", *map(mode, upstreams, reverse)]
        redirects = [f"graft_redirect={host}={upstreams[0]}" for host in GOOGLE] if upstreams else []
        self._arguments = [word for text in modes for word in ("--mode", text)]
        self._arguments += [word for text in redirects for word in ("--set", text)]
        self._arguments += sets(**{"control": "127.0.0.1:0", "drain_timeout": "0"} | options)
        self._arguments += arguments
        self.process: Process
        self.start()

    def start(self) -> None:
        """Returns when it listens."""
        environ = environment(self.folder, TOOLGRAFT_HOME=str(self.state), **self._environ)
        line = command(self.folder, *self._arguments, early=self._early, interface=self._interface)
        self.process = Process("mitmdump", line, environ)
        self.process.wait_for(r"session \S+, store ")
        path = self.state / "token"
        token = path.read_text().strip() if path.exists() else ""
        self.control = Control((self.state / "control.url").read_text().strip(), token)

    @property
    def url(self) -> str:
        """The first reverse proxy."""
        return self.urls[0]

    @property
    def ca(self) -> Path:
        return self.folder / "conf" / "mitmproxy-ca-cert.pem"

    def user(self, session: str) -> str:
        """The regular proxy's URL for a client of a session."""
        return f"http://{session}:x@{self.address}"

    @property
    def log(self) -> str:
        return self.process.log

    def stop(self) -> int:
        self.control.close()
        return self.process.stop()

    def restart(self) -> None:
        assert self.stop() == 0
        self.start()


class Control:
    """The control API, called like from a user's script."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token
        self.http = httpx2.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=60)

    def close(self) -> None:
        self.http.close()

    def ask(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        answer = self.http.request(method, path, **more)
        assert answer.status_code == status, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def session(self, name: str) -> "Session":
        return Session(self, name)

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


class Session:
    def __init__(self, control: Control, name: str) -> None:
        self.control = control
        self.name = name

    def tools(self, declarations: list[Json] = DECLARATIONS, **more: Any) -> None:
        tools = [{"functionDeclarations": declarations}] if declarations else []
        self.control.ask("PUT", f"/v1/sessions/{self.name}/tools", json={"tools": tools, **more})

    def policy(self, **policy: Any) -> None:
        self.control.ask("PATCH", f"/v1/sessions/{self.name}", json=policy)

    def calls(self, **query: Any) -> list[Json]:
        found: list[Json] = self.control.ask("GET", "/v1/calls", params={"session": self.name, **query})["items"]
        return found

    def turns(self) -> list[Json]:
        found: list[Json] = self.control.ask("GET", "/v1/turns", params={"session": self.name})["items"]
        return found

    def rounds(self) -> list[Json]:
        """The rounds of the newest request's loop."""
        items = self.control.ask("GET", "/v1/requests", params={"session": self.name, "limit": 1})["items"]
        found: list[Json] = items[0]["round_times"] if items else []
        return found

    def answer(self, **results: Any) -> list[Json]:
        """Answer all pending calls, by tool: with a value, or a function of the arguments."""
        pending = self.calls(status="pending", wait=10)
        assert pending, "nothing was called"
        for call in pending:
            result = results[call["name"]]
            result = result(**call["args"]) if callable(result) else result
            self.control.ask("POST", f"/v1/calls/{call['call_id']}/result", json={"result": result})
        return pending


TOOLS = ROOT / "tests" / "e2e" / "tools" / "local.py"
MCP_SERVER = ROOT / "tests" / "tools" / "mcp_server.py"
MCP_STDIO = {"command": sys.executable, "args": [str(MCP_SERVER), "stdio"], "prefix": "local_"}


def mcp_file(folder: Path, **servers: Json) -> Path:
    """A configuration of these MCP servers; by default, of one over stdio with the prefix `local_`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers or {"local": MCP_STDIO}}))
    return path


def looping_proxy(folder: Path, *upstreams: str, mcp: Path | None = None, **more: Any) -> Proxy:
    """A proxy that runs the tools of `TOOLS`, and of an MCP server."""
    return Proxy(folder, *upstreams, tools=str(TOOLS), mcp=str(mcp or mcp_file(folder)), **more)


def new_session(proxy: Proxy, *, tools: bool = True) -> Session:
    """A session that no other test has."""
    session = proxy.control.session(f"s{next(_names)}")
    if tools:
        session.tools()
    return session


MODEL_PATH = "/v1beta/models/gemini-3-flash-preview"


def ask(proxy: Proxy, session: Session, text: str, *, stream: bool = False) -> str:
    """Ask one question in reverse mode. Returns the answer's text."""
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    url = f"{proxy.url}/@{session.name}{MODEL_PATH}:{method}"
    got = httpx2.post(url, json={"contents": [user(text)]}, headers={"x-goog-api-key": "a-secret-key"}, timeout=30)
    assert got.status_code == 200, got.text
    return text_of(sse(got.text) if stream else got.json())


def responses(request: Json) -> list[Json]:
    """The responses at the end of a request to the strict server."""
    return [part["functionResponse"]["response"] for part in request["body"]["contents"][-1]["parts"]]


def weather(city: str) -> Json:
    return {"city": city, "celsius": len(city)}


def sse(text: str) -> list[Json]:
    """The events of a stream, in the framing that every client accepts."""
    assert text.endswith("\r\n\r\n"), text[-50:]
    events = text.removesuffix("\r\n\r\n").split("\r\n\r\n")
    assert all(event.startswith("data: ") for event in events), text
    return [json.loads(event.removeprefix("data: ")) for event in events]


def parts_of(answer: Any) -> list[Json]:
    """The parts of the first candidate, of a whole answer or of all events of a stream."""
    if isinstance(answer, list):
        return [part for one in answer for part in parts_of(one)]
    answer = answer.get("response", answer)
    found: list[Json] = answer["candidates"][0].get("content", {}).get("parts", [])
    return found


def text_of(answer: Any) -> str:
    return "".join(part.get("text", "") for part in parts_of(answer) if not part.get("thought"))


def content_of(side: str, *texts: str) -> Json:
    return {"role": side, "parts": [{"text": text} for text in texts]}


user = functools.partial(content_of, "user")
model = functools.partial(content_of, "model")
