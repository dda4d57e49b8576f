"""The wheel, installed in an environment of its own and used outside of any checkout."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import ROOT
from tests.ports import free_port

pytestmark = pytest.mark.e2e
_SET_UP = 300  # seconds
TOOLS = '''
from toolgraft import tool


@tool(idempotent=True)
def add(a: int, b: int) -> int:
    """Add."""
    return a + b
'''


def run(*command: str | Path, environment: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=_SET_UP, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


PIP = (sys.executable, "-I", "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    (file,) = folder.glob("toolgraft-*.whl")
    return file


def install(wheel: Path, folder: Path, *options: str | Path) -> Path:
    """The `bin` folder of an environment that has the wheel, and what the wheel itself asks for."""
    run(sys.executable, "-I", "-m", "venv", "--without-pip", folder)
    run(*PIP, "--python", folder / "bin" / "python", "install", *options, wheel)
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("environment"), "-c", ROOT / "constraints.txt")


def environment_of(installed: Path, home: Path) -> dict[str, str]:
    return {
        "PATH": f"{installed}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "TOOLGRAFT_HOME": str(home / "state"),
    }


@pytest.fixture
def environment(installed: Path, tmp_path: Path) -> dict[str, str]:
    return environment_of(installed, tmp_path)


def test_the_package_says_that_it_is_typed_and_which_version_it_is(
    installed: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    script = (
        "import addon, importlib.resources as r, store, toolgraft; "
        "print([(r.files(p) / 'py.typed').is_file() for p in (addon, store, toolgraft)])"
    )
    python = installed / "python"
    assert run(python, "-I", "-c", script, environment=environment, cwd=tmp_path) == "[True, True, True]\n"
    version = run(installed / "toolgraft", "--version", environment=environment, cwd=tmp_path)
    assert f'version = "{version.split()[1]}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("part", ["chat", "loop"])
def test_the_demo_runs(installed: Path, environment: dict[str, str], tmp_path: Path, part: str) -> None:
    assert "All checks passed." in run(installed / "toolgraft", "demo", part, environment=environment, cwd=tmp_path)


@pytest.mark.long
def test_the_demo_runs_with_the_newest_of_everything(wheel: Path, tmp_path: Path) -> None:
    """As after `pip install .`, without the pins."""
    answer = subprocess.run(
        [*PIP, "download", "--no-deps", "--dest", tmp_path, "itsdangerous"], check=False, timeout=60
    )
    if answer.returncode:
        pytest.skip("no package registry can be reached")
    installed = install(wheel, tmp_path / "environment")
    environment = environment_of(installed, tmp_path)
    run(*PIP, "--python", installed / "python", "check")
    assert "All checks passed." in run(installed / "toolgraft", "demo", environment=environment, cwd=tmp_path)


@pytest.fixture
def served(installed: Path, environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """The URL of the control API of a proxy, which a tools file gives a tool."""
    (tmp_path / "mine.py").write_text(TOOLS)
    port = free_port()
    command = [str(installed / "toolgraft"), "serve", "--mode", "regular@127.0.0.1:0", "--set", "graft_tools=mine.py"]
    command += ["--set", f"graft_control=127.0.0.1:{port}", "--set", "graft_token=off"]
    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if "toolgraft is up." in line:
                    break
            else:
                pytest.fail("".join(lines))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.stdout.read()
            process.wait(timeout=15)


def test_the_proxy_is_served_with_a_tools_file(served: str) -> None:
    with urllib.request.urlopen(f"{served}/v1/sessions/default/tools", timeout=10) as answer:
        assert "add" in json.dumps(json.load(answer))
