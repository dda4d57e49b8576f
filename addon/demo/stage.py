"""The stage: a strict local Gemini, mitmdump with the addon in front of it, and the control API, all on free ports.

Everything runs on loopback and in a temporary folder. Leaving the stage ends and removes everything.
"""

import asyncio
import contextlib
import gzip
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from starlette.types import Message, Receive, Scope, Send

import addon
from addon.fake_gemini.app import App
from addon.fake_gemini.reply import Shape
from addon.fake_gemini.server import StrictGemini

Json = dict[str, Any]

_START = 30.0
_STOP = 5.0
_POLL_INTERVAL = 0.02
_SHOWN_LINES = 12
_KEY = {"x-goog-api-key": "any key will do"}


class DemoFailed(Exception):
    """A check of the demo failed, or the demo could not start; the message says why."""


class Recorder(App):
    """The strict server's application, which also records its answers: pieces with their times. The first, empty one
    has the request's time."""

    def __init__(self, gemini: StrictGemini, shape: Shape | None = None) -> None:
        super().__init__(gemini.service, shape or Shape(), gemini.log)
        self.answers: list[list[tuple[float, bytes]]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pieces = [(time.time(), b"")]
        self.answers.append(pieces)

        async def record(message: Message) -> None:
            if piece := message.get("body"):
                pieces.append((time.time(), piece))
            await send(message)

        await super().__call__(scope, receive, record)


class Stage:
    """`proxy`: the reverse proxy's URL. `control`: the control API's URL. `session`: the client's session. Methods
    raise DemoFailed for an error answer."""

    def __init__(
        self, gemini: StrictGemini, recorder: Recorder, *, proxy: str, control: str, token: str, session: str
    ) -> None:
        self.gemini = gemini
        self.recorder = recorder
        self.proxy = proxy
        self.control = control
        self.session = session
        self._bearer = {"Authorization": f"Bearer {token}"}
        # Ignores the environment's proxies.
        self._http = httpx2.AsyncClient(timeout=10, trust_env=False, event_hooks={"response": [_check]})

    async def ask(self, path: str, document: Json) -> str:
        """Send a request through the proxy. Returns the answer's body at the client."""
        return (await self._http.post(self._at_proxy(path), json=document, headers=_KEY)).text

    async def stream(self, path: str, document: Json) -> AsyncIterator[str]:
        """Send a request through the proxy. Yields the answer's lines at the client."""
        async with self._http.stream("POST", self._at_proxy(path), json=document, headers=_KEY) as answer:
            async for line in answer.aiter_lines():
                yield line

    async def events(self) -> AsyncIterator[str]:
        """The lines of the session's events in the control API, from the first on."""
        url = f"{self.control}/v1/events?session={self.session}&after=0"
        async with self._http.stream("GET", url, headers=self._bearer) as answer:
            async for line in answer.aiter_lines():
                yield line

    async def call_control(self, method: str, path: str, document: Any = None) -> Any:
        """Call the control API and return its answer."""
        body = {} if document is None else {"json": document}
        return (await self._http.request(method, self.control + path, headers=self._bearer, **body)).json()

    async def respond(self, document: Json) -> Json:
        """Send a request to the front door `/v1/responses`. Returns the response."""
        headers = self._bearer | _KEY | {"x-graft-session": self.session}
        answer: Json = (await self._http.post(f"{self.control}/v1/responses", json=document, headers=headers)).json()
        return answer

    @property
    def upstream(self) -> Json:
        """The body of the latest request to Gemini. Raises DemoFailed if there is none."""
        if not self.gemini.requests:
            raise DemoFailed("nothing reached the local Gemini")
        body: Json = self.gemini.requests[-1]["body"]
        return body

    @property
    def answered(self) -> str:
        """The body of Gemini's latest answer, as Gemini sent it."""
        body = b"".join(piece for _, piece in self.recorder.answers[-1])
        return (gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body).decode()

    async def close(self) -> None:
        await self._http.aclose()

    def _at_proxy(self, path: str) -> str:
        return f"{self.proxy}{'' if self.session == 'default' else f'/@{self.session}'}{path}"


async def _check(answer: httpx2.Response) -> None:
    if answer.is_error:
        await answer.aread()
        request = f"{answer.request.method} {answer.request.url}"
        raise DemoFailed(f"{request} was answered {answer.status_code}: {answer.text[:1000]}")


@dataclass(frozen=True)
class Plan:
    """A stage's settings: how Gemini's streams are cut, and the proxy's options, additional environment variables and
    working directory."""

    shape: Shape = field(default_factory=Shape)
    options: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    cwd: Path | None = None


@contextlib.asynccontextmanager
async def set_stage(session: str, plan: Plan) -> AsyncIterator[Stage]:
    """Set up the stage. Raises DemoFailed if mitmdump does not start."""
    gemini = StrictGemini()
    gemini.app = recorder = Recorder(gemini, plan.shape)
    token = secrets.token_urlsafe(16)
    with tempfile.TemporaryDirectory(prefix="toolgraft-demo-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        async with gemini, _mitmdump(gemini.url, folder, token, plan):
            proxy = json.loads((folder / "proxy.json").read_text())["reverse"][0]
            control = (folder / "control.url").read_text().strip()
            stage = Stage(gemini, recorder, proxy=proxy, control=control, token=token, session=session)
            try:
                yield stage
            finally:
                await stage.close()


@contextlib.asynccontextmanager
async def _mitmdump(upstream: str, folder: Path, token: str, plan: Plan) -> AsyncIterator[None]:
    program = shutil.which("mitmdump", path=str(Path(sys.executable).parent)) or shutil.which("mitmdump")
    if program is None:
        raise DemoFailed(f"there is no mitmdump beside {sys.executable}")
    home = Path(addon.__path__[0])
    defaults = ["graft_control=127.0.0.1:0", f"graft_state={folder}", f"confdir={folder}", "flow_detail=0"]
    defaults.append(f"graft_upstream={upstream}")
    paths = [str(home.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    log = folder / "mitmdump.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            program,
            *("-s", str(home / "entry.py")),
            *("--mode", f"reverse:{upstream}@127.0.0.1:0"),
            *(word for option in [*defaults, *plan.options] for word in ("--set", option)),
            # Not in the arguments, which the process list shows.
            env=os.environ
            | {"TOOLGRAFT_TOKEN": token, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(paths)}
            | plan.environment,
            cwd=plan.cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # so that Ctrl-C reaches only the demo, which ends it
        )
    try:
        await _until_up(process, log)
        yield
    except (DemoFailed, httpx2.HTTPError) as error:
        lines = log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
        error.add_note("mitmdump said:\n" + "\n".join(f"  {line}" for line in lines))
        raise
    finally:
        await _end(process)


async def _until_up(process: asyncio.subprocess.Process, log: Path) -> None:
    """Wait for the addon's log line that every port is open. The files with its addresses exist then."""
    try:
        async with asyncio.timeout(_START):
            while not _is_up(log):
                if process.returncode is not None:
                    raise DemoFailed("the proxy did not start")
                await asyncio.sleep(_POLL_INTERVAL)
    except TimeoutError:
        raise DemoFailed(f"the proxy was not up after {_START:.0f} seconds") from None


def _is_up(log: Path) -> bool:
    return "toolgraft is up." in log.read_text(errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Terminate the process, and kill it after a timeout."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_STOP):
            await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
