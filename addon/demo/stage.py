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
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
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
_KEPT_LINES = 12
_KEY = {"x-goog-api-key": "any key will do"}


class DemoFailed(Exception):
    """A check of the demo failed, or the demo could not start; the message says why."""


class Recorder(App):
    """The strict server's application, which also records the body of its latest answer.

    `on_piece`, if set, is called with None for each request, and with each piece of its answer.
    """

    body = b""
    on_piece: Callable[[bytes | None], None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.body = b""
        if self.on_piece:
            self.on_piece(None)

        async def record(message: Message) -> None:
            piece = message.get("body", b"")
            self.body += piece
            if self.on_piece and piece:
                self.on_piece(piece)
            await send(message)

        await super().__call__(scope, receive, record)


class Stage:
    """`proxy`: the reverse proxy's URL. `control`: the control API's URL. `session`: the client's session."""

    def __init__(
        self, gemini: StrictGemini, recorder: Recorder, *, proxy: str, control: str, token: str, session: str
    ) -> None:
        self.gemini = gemini
        self.proxy = proxy
        self.control = control
        self.session = session
        self._recorder = recorder
        # ignore proxies of the environment
        self._http = httpx2.AsyncClient(timeout=10, trust_env=False)
        self._bearer = {"Authorization": f"Bearer {token}"}

    async def ask(self, path: str, document: Json) -> str:
        """Send a request through the proxy. Returns the answer's body at the client. Raises DemoFailed."""
        return (await self._send("POST", self._at_proxy(path), document, _KEY)).text

    def stream(self, path: str, document: Json) -> AsyncIterator[str]:
        """Send a request through the proxy. Yields the answer's lines at the client. Raises DemoFailed."""
        return self._lines("POST", self._at_proxy(path), document, _KEY)

    def follow(self) -> AsyncIterator[str]:
        """The lines of the control API's events. From the first line on, no event is missed."""
        return self._lines("GET", f"{self.control}/v1/events?session={self.session}", None, self._bearer)

    def listen(self, on_piece: Callable[[bytes | None], None] | None) -> None:
        """Set `Recorder.on_piece`."""
        self._recorder.on_piece = on_piece

    async def call_control(self, method: str, path: str, document: Any = None) -> Any:
        """Call the control API and return its answer. Raises DemoFailed."""
        return (await self._send(method, self.control + path, document, self._bearer)).json()

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
        body = self._recorder.body
        return (gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body).decode()

    async def close(self) -> None:
        await self._http.aclose()

    def _at_proxy(self, path: str) -> str:
        return f"{self.proxy}{'' if self.session == 'default' else f'/@{self.session}'}{path}"

    async def _send(self, method: str, url: str, document: Any, headers: dict[str, str]) -> httpx2.Response:
        body = {} if document is None else {"json": document}
        try:
            answer = await self._http.request(method, url, headers=headers, **body)
        except httpx2.HTTPError as error:
            raise _broken(method, url, error) from error
        _check(answer)
        return answer

    async def _lines(self, method: str, url: str, document: Any, headers: dict[str, str]) -> AsyncIterator[str]:
        body = {} if document is None else {"json": document}
        try:
            async with self._http.stream(method, url, headers=headers, **body) as answer:
                if answer.is_error:
                    await answer.aread()
                _check(answer)
                async for line in answer.aiter_lines():
                    yield line
        except httpx2.HTTPError as error:
            raise _broken(method, url, error) from error


def _broken(method: str, url: str, error: httpx2.HTTPError) -> DemoFailed:
    return DemoFailed(f"{method} {url}: {str(error) or type(error).__name__}")


def _check(answer: httpx2.Response) -> None:
    if answer.is_error:
        request = f"{answer.request.method} {answer.request.url}"
        raise DemoFailed(f"{request} was answered {answer.status_code}: {answer.text[:1000]}")


@dataclass(frozen=True)
class Plan:
    """A stage's settings: how Gemini's streams are cut, and the proxy's options, further environment variables and
    working directory."""

    shape: Shape = field(default_factory=Shape)
    options: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    cwd: Path | None = None


@contextlib.asynccontextmanager
async def set_stage(session: str, plan: Plan) -> AsyncIterator[Stage]:
    """Set up the stage. Raises DemoFailed if mitmdump does not start."""
    gemini = StrictGemini()
    gemini.app = recorder = Recorder(gemini.service, plan.shape, gemini.log)
    token = secrets.token_urlsafe(16)
    with tempfile.TemporaryDirectory(prefix="toolgraft-demo-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        async with gemini, _mitmdump(gemini.url, folder, token, plan):
            listening = json.loads((folder / "proxy.json").read_text())
            control = (folder / "control.url").read_text().strip()
            stage = Stage(
                gemini, recorder, proxy=listening["reverse"][0], control=control, token=token, session=session
            )
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
    paths = [str(home.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = await asyncio.create_subprocess_exec(
        program,
        *("-s", str(home / "entry.py")),
        *("--mode", f"reverse:{upstream}@127.0.0.1:0"),
        *(word for option in [*defaults, *plan.options] for word in ("--set", option)),
        # in the environment, because the process list shows arguments
        env=os.environ
        | {"TOOLGRAFT_TOKEN": token, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(paths)}
        | plan.environment,
        cwd=plan.cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,  # so that Ctrl-C reaches only the demo, which ends it
    )
    output_lines: deque[str] = deque(maxlen=_KEPT_LINES)
    reading: asyncio.Task[None] | None = None
    try:
        assert process.stdout is not None
        await _until_up(process.stdout, output_lines)
        reading = asyncio.get_running_loop().create_task(_read(process.stdout, output_lines))
        yield
    except DemoFailed as error:
        error.add_note("mitmdump said:\n" + "\n".join(f"  {line}" for line in output_lines))
        raise
    finally:
        await _end(process)
        if reading is not None:
            await reading


async def _until_up(output: asyncio.StreamReader, output_lines: deque[str]) -> None:
    """Wait for the addon's log line that every port is open. The files with its addresses exist by then."""
    try:
        async with asyncio.timeout(_START):
            async for line in output:
                output_lines.append(line.decode(errors="replace").rstrip())
                if output_lines[-1].endswith("toolgraft is up."):
                    return
    except TimeoutError:
        raise DemoFailed(f"the proxy was not up after {_START:.0f} seconds") from None
    raise DemoFailed("the proxy did not start")


async def _read(output: asyncio.StreamReader, output_lines: deque[str]) -> None:
    async for line in output:
        output_lines.append(line.decode(errors="replace").rstrip())


async def _end(process: asyncio.subprocess.Process) -> None:
    """Terminate the process, and kill it after a timeout."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
        try:
            async with asyncio.timeout(_STOP):
                await process.wait()
        except TimeoutError:
            pass
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
