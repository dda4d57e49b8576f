"""The documentation against the program: tables are complete, links and paths lead somewhere, the tour works.

`python -m tests.test_docs` writes the tables again.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from addon.cli.app import app
from addon.core.history.keys import USER_HEADERS
from addon.graft.machine_protocol import TABLE, State
from addon.options import OPTIONS
from addon.settings import Group
from tests.ports import free_port

ROOT = Path(__file__).parents[1]
TOUR = ROOT / "docs" / "tour.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")])

# --- tables ---------------------------------------------------------------------------------------------------------


def option_lines() -> Iterator[str]:
    """A heading and a table for each group of options."""
    for group in Group:
        yield from (f"## {group.value}", "")
        rows = [
            (f"`{option.name}`", f"`{option.default}`" if option.default else "", option.help)
            for option in OPTIONS
            if option.group is group
        ]
        yield from (*table_lines(("option", "default", "what"), rows), "")


def command_rows() -> Iterator[tuple[str, ...]]:
    def rows(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if hasattr(command, "commands"):
            if words and command.invoke_without_command:
                yield f"`{' '.join(words)}`", command.get_short_help_str(200)
            for name, found in command.commands.items():
                if not found.hidden:
                    yield from rows(found, (*words, name))
            return
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        metavars = [p.metavar if p.required else f"[{p.metavar}]" for p in arguments]
        yield f"`{' '.join([*words, *metavars])}`", command.get_short_help_str(200)

    return rows(get_command(app), ())


def state_lines() -> Iterator[str]:
    """The table of the answer machine, but for what is possible in every state."""
    yield from ("```mermaid", "stateDiagram-v2", "    [*] --> new")
    for state, events in TABLE.items():
        for to in State:
            names = [event for event, tos in events.items() if to in tos and event not in ("fail", "close")]
            if names and to is not state:
                yield f"    {state} --> {to}: {', '.join(names)}"
    yield from ("    over --> [*]", "```")


SECTIONS = {
    "options": ("options.md", option_lines),
    "commands": ("commands.md", lambda: table_lines(("command", "what"), command_rows())),
    "states": ("architecture.md", state_lines),
}
"""The generated parts of pages."""


def page_of(name: str) -> Path:
    return ROOT / "docs" / SECTIONS[name][0]


def table_of(name: str) -> str:
    return "\n".join(SECTIONS[name][1]()).strip()


def table_lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for line in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |"


def section(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name} -->\n).*(?=<!-- /{name} -->)", re.DOTALL)


@pytest.mark.parametrize("name", SECTIONS)
def test_the_tables_list_all_there_is(name: str) -> None:
    found = section(name).search(page_of(name).read_text())
    assert found is not None
    assert found[0].strip() == table_of(name), "python -m tests.test_docs brings the tables up to date"


def test_the_limits_list_the_headers_that_name_a_user() -> None:
    text = (ROOT / "docs" / "limits.md").read_text().partition("## Whose retry it is")[2].partition("Addresses")[0]
    assert set(re.findall(r"`([a-z-]+)`", text.partition("names others:")[2])) == USER_HEADERS


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 250


# --- links and paths ------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for link, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
            target = page.parent / link if link else page
            if "://" in link:
                continue
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append((page.name, link, anchor))
    assert not broken


def test_files_that_pages_name_are_there() -> None:
    missing = [
        (page.name, named)
        for page in PAGES
        for named in re.findall(r"`((?:addon|store|tests|scripts|docs|bench|examples)/[\w./-]+)`", page.read_text())
        if not (ROOT / named).exists() and "NAME" not in named
    ]
    assert not missing


def test_modules_that_the_architecture_names_are_there() -> None:
    """By any end of their path, as in `framing/sse.py`."""
    paths = [
        f"/{path.relative_to(ROOT)}" for folder in ("addon", "store", "tests") for path in (ROOT / folder).rglob("*")
    ]
    named = re.findall(r"`([\w/]+\.(?:py|lua))`", (ROOT / "docs" / "architecture.md").read_text())
    assert len(named) > 60
    assert [one for one in named if not any(path.endswith(f"/{one}") for path in paths)] == []


def test_every_package_of_the_program_is_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = [path.parent for path in ROOT.glob("addon/*/__init__.py")]
    assert [p.name for p in packages if f"`addon/{p.name}`" not in text] == []


# --- the tour -------------------------------------------------------------------------------------------------------

BLOCK = re.compile(r"<!-- tour(: background)? -->\n```sh\n(.*?)```(?:\n```text\n(.*?)```)?", re.DOTALL)
IDS = re.compile(r"(?<=turn_)[0-9a-f]{16}|(?<=call_)[0-9a-f]{24}|\d\d:\d\d:\d\d")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that is set up already: with this interpreter's environment instead of one of its own."""
    for name in ("addon", "store"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    shutil.copy(ROOT / "run_proxy.sh", tmp_path)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "setup.sh").write_text("venv=$root/.venv\nset_up() { :; }\n")
    (tmp_path / "home").mkdir()
    return tmp_path


@contextmanager
def running(script: str, ready: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """A shell command that goes on until the end, waited for until it has said that it is ready."""
    with subprocess.Popen(
        ["sh", "-c", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if ready in line:
                    break
            else:
                pytest.fail(f"{script}\n{''.join(lines)}")
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.stdout.read()
            process.wait(timeout=15)


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("curl") is None, reason="the tour's commands need curl")
def test_the_tour_works_as_it_is_typed(checkout: Path) -> None:
    """Word for word, but for the ports: those of the tour may be taken."""
    home = checkout / "home"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TOOLGRAFT_HOME": str(home / "state"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    ports = {port: str(free_port()) for port in ("9912", "8081", "8741")}
    tour = re.sub("|".join(ports), lambda found: ports[found[0]], TOUR.read_text())
    blocks = BLOCK.findall(tour)
    gemini, proxy = (script.strip() for background, script, _ in blocks if background)
    blocks = [(script, expected) for background, script, expected in blocks if not background]
    with ExitStack() as stack:
        at_port = f"exec {gemini} --port {ports['9912']}"
        stack.enter_context(running(at_port, "listening on", checkout, environment))
        at_port = f"exec {proxy} --set graft_control=127.0.0.1:{ports['8741']}"
        stack.enter_context(running(at_port, "control API at", checkout, environment))
        typed = "printf '\\036'\n".join(script for script, _ in blocks)
        done = subprocess.run(
            ["sh", "-eu"], input=typed, cwd=checkout, env=environment, capture_output=True, text=True, timeout=60
        )
    assert (done.returncode, done.stderr) == (0, "")
    outputs = done.stdout.split("\x1e")
    assert len(outputs) == len(blocks)
    for (script, expected), output in zip(blocks, outputs, strict=True):
        if expected:
            assert [IDS.sub("…", line.rstrip()) for line in output.splitlines()] == IDS.sub("…", expected).splitlines()
        else:
            documents = re.findall(r"^\{$.*?^\}$", output, re.DOTALL | re.MULTILINE)
            assert len(documents) == script.count("curl")
            assert all(json.loads(document)["items"] for document in documents)


if __name__ == "__main__":
    for name in SECTIONS:
        page = page_of(name)
        page.write_text(section(name).sub(lambda _, name=name: table_of(name) + "\n", page.read_text()))  # type: ignore[misc]
