"""The stage: a strict local Gemini, mitmdump with the addon before it, and the control API, all on free ports.

Everything lives on loopback and in a temporary folder, and leaving the stage ends and removes all of it.
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
from addon.demo.app import App
from addon.demo.reply import Shape
from addon.demo.server import StrictGemini

Json = dict[str, Any]

_START = 30.0
_STOP = 5.0
_KEPT_LINES = 12
_KEY = {"x-goog-api-key": "any key will do"}


class DemoFailed(Exception):
    """What the demo shows did not come true, or it could not start; the message says what."""


class Recorder(App):
    """The strict server's application, which also keeps the body of its latest answer as it goes out.

    `heard`, where it is set, is called with None when a request comes, and with each piece of its answer.
    """

    body = b""
    heard: Callable[[bytes | None], None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.body = b""
        if self.heard:
            self.heard(None)

        async def record(message: Message) -> None:
            piece = message.get("body", b"")
            self.body += piece
            if self.heard and piece:
                self.heard(piece)
            await send(message)

        await super().__call__(scope, receive, record)


class Stage:
    """`proxy` is the reverse proxy's URL, `control` the control API's; `session` is whose tools the client gets."""

    def __init__(
        self, gemini: StrictGemini, recorder: Recorder, *, proxy: str, control: str, token: str, session: str
    ) -> None:
        self.gemini = gemini
        self.proxy = proxy
        self.control = control
        self.session = session
        self._recorder = recorder
        # straight to the ports given: no proxy of the environment is meant here
        self._http = httpx2.AsyncClient(timeout=10, trust_env=False)
        self._bearer = {"Authorization": f"Bearer {token}"}

    async def ask(self, path: str, document: Json) -> str:
        """The body of Gemini's answer, as a client gets it through the proxy. Raises DemoFailed."""
        return (await self._send("POST", self._at_proxy(path), document, _KEY)).text

    def stream(self, path: str, document: Json) -> AsyncIterator[str]:
        """The lines of Gemini's answer as they reach a client. Raises DemoFailed."""
        return self._lines("POST", self._at_proxy(path), document, _KEY)

    def follow(self) -> AsyncIterator[str]:
        """The lines of the control API's events; the first comes as soon as no later event is missed."""
        return self._lines("GET", f"{self.control}/v1/events?session={self.session}", None, self._bearer)

    def listen(self, heard: Callable[[bytes | None], None] | None) -> None:
        """Have `Recorder.heard` called."""
        self._recorder.heard = heard

    async def call_control(self, method: str, path: str, document: Any = None) -> Any:
        """The control API's answer. Raises DemoFailed."""
        return (await self._send(method, self.control + path, document, self._bearer)).json()

    @property
    def upstream(self) -> Json:
        """The body of the latest request that reached Gemini. Raises DemoFailed where there is none."""
        if not self.gemini.requests:
            raise DemoFailed("nothing reached the local Gemini")
        body: Json = self.gemini.requests[-1]["body"]
        return body

    @property
    def answered(self) -> str:
        """The body of Gemini's latest answer, as it left Gemini."""
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
        asked = f"{answer.request.method} {answer.request.url}"
        raise DemoFailed(f"{asked} was answered {answer.status_code}: {answer.text[:1000]}")


@dataclass(frozen=True)
class Plan:
    """What a stage has beside the usual: how Gemini's streams are cut, the proxy's options, its environment's further
    variables, and its folder."""

    shape: Shape = field(default_factory=Shape)
    options: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    cwd: Path | None = None


@contextlib.asynccontextmanager
async def set_stage(session: str, plan: Plan) -> AsyncIterator[Stage]:
    """The whole stage. Raises DemoFailed where mitmdump does not come up."""
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
    own = ["graft_control=127.0.0.1:0", f"graft_state={folder}", f"confdir={folder}", "flow_detail=0"]
    paths = [str(home.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = await asyncio.create_subprocess_exec(
        program,
        *("-s", str(home / "entry.py")),
        *("--mode", f"reverse:{upstream}@127.0.0.1:0"),
        *(word for option in [*own, *plan.options] for word in ("--set", option)),
        # the token in the environment, where the process list does not show it
        env=os.environ
        | {"TOOLGRAFT_TOKEN": token, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(paths)}
        | plan.environment,
        cwd=plan.cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for the demo, which ends it
    )
    said: deque[str] = deque(maxlen=_KEPT_LINES)
    reading: asyncio.Task[None] | None = None
    try:
        assert process.stdout is not None
        await _until_up(process.stdout, said)
        reading = asyncio.get_running_loop().create_task(_read(process.stdout, said))
        yield
    except DemoFailed as error:
        error.add_note("mitmdump said:\n" + "\n".join(f"  {line}" for line in said))
        raise
    finally:
        await _end(process)
        if reading is not None:
            await reading


async def _until_up(output: asyncio.StreamReader, said: deque[str]) -> None:
    """Until the line that the addon says when every port is open; the files of its addresses are written by then."""
    try:
        async with asyncio.timeout(_START):
            async for line in output:
                said.append(line.decode(errors="replace").rstrip())
                if said[-1].endswith("toolgraft is up."):
                    return
    except TimeoutError:
        raise DemoFailed(f"the proxy was not up after {_START:.0f} seconds") from None
    raise DemoFailed("the proxy did not start")


async def _read(output: asyncio.StreamReader, said: deque[str]) -> None:
    async for line in output:
        said.append(line.decode(errors="replace").rstrip())


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask it to end, and see to it."""
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
