"""Chats of the published clients, unmodified, each in a separate process that is driven line by line."""

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import filelock
import platformdirs
import pytest

from tests.e2e.processes import Process, environment

Json = dict[str, Any]

CLIENTS = Path(__file__).parent / "clients"
GENAI_JS = "@google/genai@3.1.0"


class Client:
    """A client in a separate process, which ends with the block."""

    def __init__(self, program: list[str | Path], home: Path, env: Mapping[str, str], options: Json) -> None:
        self.process = Process("client", program, environment(home, **env))
        self.process.send(json.dumps(options))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            return  # shown with the failure, and stopped after that
        self.process.send("")
        assert self.process.wait() == 0, self.process.log


class Chat(Client):
    """`say` sends a message and returns the answer's text; `history`: the contents of the client's next request."""

    def __init__(self, program: list[str | Path], home: Path, env: Mapping[str, str], **options: Any) -> None:
        super().__init__(program, home, env, options)
        self.history: list[Json] = []

    def say(self, text: str) -> str:
        mark = self.process.mark()
        self.process.send(json.dumps({"say": text}))
        answer = json.loads(self.process.wait_for(r'^\{"text": ?', after=mark))
        self.history = answer["history"]
        assert "error" not in answer, answer["error"]
        return str(answer["text"])

    def fail(self, text: str) -> str:
        """The error that the client gets instead of an answer."""
        mark = self.process.mark()
        self.process.send(json.dumps({"say": text}))
        return str(json.loads(self.process.wait_for(r'^\{"text": ?', after=mark))["error"])


def python(home: Path, kind: str, env: Mapping[str, str] | None = None, **options: Any) -> Chat:
    """google-genai; `kind` is sync, stream, async or async-stream."""
    program: list[str | Path] = [sys.executable, CLIENTS / "chat.py"]
    return Chat(program, home, env or {}, kind=kind, **options)


def node(home: Path, kind: str, **options: Any) -> Chat:
    """@google/genai; `kind` is async or stream. It knows no proxy variables."""
    return Chat(["node", CLIENTS / "chat.mjs"], home, {"GENAI_JS": str(installed())}, kind=kind, **options)


def installed(package: str = GENAI_JS, *others: str) -> Path:
    """The folder of a package from npm, installed once in the user's cache, beside others. Without npm or a registry,
    the test is skipped, except in CI."""
    folder, why = _installed(package, *others)
    if folder is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    return folder


@functools.cache
def _installed(package: str, *others: str) -> tuple[Path | None, str]:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        return None, f"npm and node are not installed: {package} cannot be tried"
    folder = platformdirs.user_cache_path("toolgraft-tests") / package.replace("/", "+")
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder / ".lock", timeout=120):
        done = folder / ".installed"
        if not done.exists():
            # Native add-ons are optional, and are built or fetched by scripts.
            flags = ["--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional"]
            command = [npm, "install", *flags, "--prefix", str(folder), package, *others]
            try:
                ran = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder, env=os.environ)
            except subprocess.TimeoutExpired:
                return None, f"{package} could not be installed from npm within 120 s"
            if ran.returncode != 0:
                return None, f"{package} could not be installed from npm:\n{ran.stdout}{ran.stderr}"
            done.touch()
    return folder / "node_modules" / package.rpartition("@")[0], ""
