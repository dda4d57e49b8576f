"""A copy of the checkout, with fake interpreters, pip and uv."""

import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("sh", "cat", "cksum", "dirname", "basename", "rm", "mkdir", "mv", "cp", "chmod", "head", "tail", "date")
BOUND = 30

# An interpreter of some version, which passes the scripts' checks on to the real one.
PYTHON = """#!/bin/sh
printf '%s\\n' "$(basename "$0") $*" | head -n 1 >>"$FAKE_LOG"
case "$*" in
    *version_info*)
        exec '{real}' -I -S -c 'import sys; sys.version_info = ({version}, "final", 0); exec(sys.argv[1])' "$4"
        ;;
    *sysconfig*)
        mkdir -p "$(dirname "$0")/../site"
        echo "$(dirname "$0")/../site"
        ;;
    *"-m venv"*)
        [ -z "$FAKE_VENV_FAILS" ] || { echo "ensurepip is not available"; exit 1; }
        for folder do :; done
        mkdir -p "$folder/bin"
        cp "$0" "$folder/bin/python"
        for name in mitmdump mitmweb ruff mypy lint-imports; do cp "$FAKE_PROGRAM" "$folder/bin/$name"; done
        ;;
    *"-m pip "*)
        printf 'wants %s\\n' $(cat) >>"$FAKE_LOG"
        [ -z "$FAKE_PIP_FAILS" ] || { echo "No matching distribution found"; exit 1; }
        [ -z "$FAKE_PIP_IS_KILLED" ] || kill -9 0
        [ -z "$FAKE_PIP_WAITS" ] || { echo >"$FAKE_PIP_WAITS.in"; cat "$FAKE_PIP_WAITS.out"; }
        ;;
    *"-m addon"* | *"-m pytest"* | *"-m tests."*)
        echo "$*"
        [ -z "$FAKE_SHOWS" ] || printf '%s\\n' "$PYTHONPATH" "$PWD"
        [ -z "$FAKE_OPEN" ] || { { : >&1; } && { : >&2; } && : >"$FAKE_OPEN"; }
        exit "${FAKE_TESTS_FAIL:-0}"
        ;;
    *) exec '{real}' "$@" ;;
esac
"""

# mitmdump and the checkers: prints how it was started.
PROGRAM = """#!/bin/sh
for argument in "$(basename "$0")" "$@"; do printf '%s\\n' "$argument"; done
printf '%s\\n' "$PYTHONPATH" "$PWD"
[ "$(basename "$0")" != "$FAKE_CHECK_HANGS" ] || { echo $$ >"$HOME/hangs"; exec tail -f /dev/null; }
[ "$(basename "$0")" != "$FAKE_CHECK_FAILS" ]
"""


@dataclass
class Checkout:
    """A copy of the checkout in a folder with a blank in its name, and a PATH with only `bin`."""

    root: Path
    bin: Path
    home: Path
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        log, program = self.home / "log", self.home / "program"
        return {
            "PATH": str(self.bin),
            "HOME": str(self.home),
            "FAKE_LOG": str(log),
            "FAKE_PROGRAM": str(program),
        } | self.extra

    @property
    def log(self) -> str:
        path = self.home / "log"
        return path.read_text() if path.exists() else ""

    def script(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def python(self, version: str, path: Path | None = None) -> None:
        """Create an interpreter of a version at `path`, or else on PATH as `python3.MINOR`."""
        minor = version.split(".")[1]
        text = PYTHON.replace("{real}", sys.executable).replace("{version}", version.replace(".", ", "))
        self.script(path or self.bin / f"python3.{minor}", text)

    def start(self, *arguments: str, script: str = "run_proxy.sh") -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [self.root / script, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.home,
            start_new_session=True,
        )

    def run(self, *arguments: str, script: str = "run_proxy.sh", status: int = 0) -> tuple[list[str], str]:
        """Returns the lines of stdout, and stderr."""
        process = self.start(*arguments, script=script)
        try:
            out, err = process.communicate(timeout=BOUND)
        finally:
            process.kill()
        assert process.returncode == status, (out, err)
        return out.splitlines(), err

    def set_ups(self) -> int:
        return sum("-m venv" in line for line in self.log.splitlines())


@pytest.fixture
def bare(tmp_path: Path) -> Checkout:
    """A machine without a suitable Python."""
    checkout = Checkout(root=tmp_path / "the checkout", bin=tmp_path / "bin", home=tmp_path / "home")
    for folder in (checkout.root, checkout.bin, checkout.home):
        folder.mkdir()
    for name in ("run_proxy.sh", "run_tests.sh", "pyproject.toml", "constraints.txt", ".python-version"):
        shutil.copy(ROOT / name, checkout.root / name)
    shutil.copytree(ROOT / "scripts", checkout.root / "scripts")
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None, tool
        (checkout.bin / tool).symlink_to(found)
    checkout.script(checkout.home / "program", PROGRAM)
    return checkout


@pytest.fixture
def checkout(bare: Checkout) -> Checkout:
    bare.python("3.13.4")
    return bare


@pytest.fixture
def made(checkout: Checkout) -> Checkout:
    """A checkout that was set up before."""
    checkout.run()
    return checkout
