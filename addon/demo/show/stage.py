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
from collections.abc import AsyncIterator
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


class DemoFailed(Exception):
    """What the demo shows did not come true, or it could not start; the message says what."""


class Recorder(App):
    """The strict server's application, which also keeps the body of its latest answer as it goes out."""

    body = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.body = b""

        async def record(message: Message) -> None:
            self.body += message.get("body", b"")
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
        prefix = "" if self.session == "default" else f"/@{self.session}"
        key = {"x-goog-api-key": "any key will do"}
        return (await self._send("POST", f"{self.proxy}{prefix}{path}", document, key)).text

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

    async def _send(self, method: str, url: str, document: Any, headers: dict[str, str]) -> httpx2.Response:
        body = {} if document is None else {"json": document}
        try:
            answer = await self._http.request(method, url, headers=headers, **body)
        except httpx2.HTTPError as error:
            raise DemoFailed(f"{method} {url}: {str(error) or type(error).__name__}") from error
        if answer.is_error:
            raise DemoFailed(f"{method} {url} was answered {answer.status_code}: {answer.text[:1000]}")
        return answer


@contextlib.asynccontextmanager
async def set_stage(session: str) -> AsyncIterator[Stage]:
    """The whole stage. Raises DemoFailed where mitmdump does not come up."""
    gemini = StrictGemini()
    gemini.app = recorder = Recorder(gemini.service, Shape(), gemini.log)
    token = secrets.token_urlsafe(16)
    with tempfile.TemporaryDirectory(prefix="toolgraft-demo-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        async with gemini, _mitmdump(gemini.url, folder, token):
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
async def _mitmdump(upstream: str, folder: Path, token: str) -> AsyncIterator[None]:
    program = shutil.which("mitmdump", path=str(Path(sys.executable).parent)) or shutil.which("mitmdump")
    if program is None:
        raise DemoFailed(f"there is no mitmdump beside {sys.executable}")
    home = Path(addon.__path__[0])
    options = ["graft_control=127.0.0.1:0", f"graft_state={folder}", f"confdir={folder}", "flow_detail=0"]
    paths = [str(home.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = await asyncio.create_subprocess_exec(
        program,
        *("-s", str(home / "entry.py")),
        *("--mode", f"reverse:{upstream}@127.0.0.1:0"),
        *(word for option in options for word in ("--set", option)),
        # the token in the environment, where the process list does not show it
        env=os.environ | {"TOOLGRAFT_TOKEN": token, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(paths)},
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
