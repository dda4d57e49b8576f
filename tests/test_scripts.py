"""run_proxy.sh and run_tests.sh in a copy of the checkout, with fake interpreters, pip and uv."""

import json
import os
import re
import select
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import pytest
from packaging.utils import canonicalize_name
from typer.main import get_command

from addon.cli.app import app

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parent.parent
TOOLS = ("sh", "cat", "cksum", "dirname", "basename", "rm", "mkdir", "mv", "cp", "chmod", "head", "date")
BOUND = 30

# An interpreter of some version: the scripts' own questions are answered by the real one.
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
        ;;
    *) exec '{real}' "$@" ;;
esac
"""

# mitmdump and the checkers: says how it was started.
PROGRAM = """#!/bin/sh
for argument in "$(basename "$0")" "$@"; do printf '%s\\n' "$argument"; done
printf '%s\\n' "$PYTHONPATH" "$PWD"
[ "$(basename "$0")" != "$FAKE_CHECK_FAILS" ]
"""

UV = """#!/bin/sh
printf '%s\\n' "uv $*" >>"$FAKE_LOG"
case "$*" in
    *"--python "*) python=${*#*--python }; python=${python%% *} ;;
esac
case "$1" in
    venv) for folder do :; done; "$python" -m venv "$folder" ;;
    pip) printf 'wants %s\\n' $(cat) >>"$FAKE_LOG" ;;
esac
"""


@dataclass
class Checkout:
    """A copy of the checkout, whose folder has a blank in its name, and a PATH that holds nothing but `bin`."""

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
        """Put an interpreter of a version there; without a path, on PATH as `python3.MINOR`."""
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
        """Lines of stdout, and stderr."""
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
    """A machine without a Python that fits."""
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


# --- the interpreter ----------------------------------------------------------------------------------------------


def test_without_a_python_the_message_says_what_to_install(bare: Checkout) -> None:
    out, err = bare.run(status=1)
    assert out == []
    assert "Python 3.13 or newer is needed" in err
    assert all(way in err for way in ("apt", "brew", "uv python install", "pyenv install"))
    assert not (bare.root / ".venv").exists()


def chosen(checkout: Checkout) -> str:
    """The version that a set-up took, from its one line."""
    _, err = checkout.run()
    assert err.startswith("toolgraft: setting up .venv with Python ")
    assert err.count("\n") == 1
    return err.split()[6]


def test_the_version_that_python_version_names_is_preferred_wherever_it_is(bare: Checkout) -> None:
    bare.python("3.14.1")
    bare.python("3.15.0", bare.bin / "python3")
    bare.python("3.13.2", bare.home / ".pyenv/versions/3.13.2/bin/python")
    assert chosen(bare) == "3.13.2"


def test_names_lie_so_the_interpreter_is_asked(bare: Checkout) -> None:
    bare.python("3.11.2", bare.bin / "python3.13")
    bare.python("3.12.1", bare.bin / "python3")
    bare.python("3.14.0", bare.bin / "python")
    assert chosen(bare) == "3.14.0"


def test_versions_that_are_too_old_count_as_none(bare: Checkout) -> None:
    bare.python("3.11.2", bare.bin / "python3")
    bare.python("3.12.9", bare.home / ".pyenv/versions/3.12.9/bin/python")
    bare.run(status=1)


def test_a_shim_that_only_complains_is_passed_over(bare: Checkout) -> None:
    bare.script(bare.bin / "python3.13", "#!/bin/sh\necho 'pyenv: python3.13: command not found' >&2\nexit 127\n")
    bare.python("3.13.2", bare.home / "elsewhere/versions/3.13.2/bin/python")
    bare.extra["PYENV_ROOT"] = str(bare.home / "elsewhere")
    assert chosen(bare) == "3.13.2"


def test_a_later_folder_of_path_is_looked_at_as_well(bare: Checkout) -> None:
    bare.python("3.10.0", bare.bin / "python3")
    bare.python("3.14.2", bare.home / "more bin/python3")
    bare.extra["PATH"] = f"{bare.bin}:{bare.home / 'more bin'}"
    assert chosen(bare) == "3.14.2"


def test_uv_s_own_interpreters_are_found(bare: Checkout) -> None:
    bare.python("3.13.7", bare.home / ".local/share/uv/python/cpython-3.13.7-linux-x86_64-gnu/bin/python3")
    assert chosen(bare) == "3.13.7"


# --- the set-up ---------------------------------------------------------------------------------------------------


def test_the_first_start_installs_the_runtime_dependencies_and_the_second_nothing(checkout: Checkout) -> None:
    checkout.run()
    assert "wants mitmproxy" in checkout.log
    assert "wants pytest" not in checkout.log
    assert f"-c {checkout.root}/constraints.txt" in checkout.log
    before = checkout.log
    out, err = checkout.run()
    assert out == ["-P -m addon serve"]
    assert err == ""
    added = checkout.log.removeprefix(before).splitlines()
    assert len(added) == 2  # one look at the interpreter's version, and the start


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt", ".python-version"])
def test_a_change_of_what_it_was_made_from_makes_it_anew(made: Checkout, name: str) -> None:
    with (made.root / name).open("a") as file:
        file.write("\n# changed\n")
    made.run()
    assert made.set_ups() == 2


def test_a_checkout_that_was_moved_is_set_up_again(made: Checkout) -> None:
    made.root = made.root.rename(made.root.with_name("moved"))
    made.run()
    assert made.set_ups() == 2


def test_a_venv_whose_interpreter_is_gone_is_made_anew(made: Checkout) -> None:
    (made.root / ".venv/bin/python").unlink()
    made.run()
    assert made.set_ups() == 2


def test_a_half_made_venv_is_made_anew(checkout: Checkout) -> None:
    left = checkout.root / ".venv/lib/left"
    left.parent.mkdir(parents=True)
    left.touch()
    checkout.run()
    assert not left.exists()
    assert checkout.set_ups() == 1


@pytest.mark.parametrize("script", ["run_proxy.sh", "run_tests.sh"])
def test_a_set_up_that_was_killed_never_counts_and_leaves_no_lock(made: Checkout, script: str) -> None:
    (made.root / ".python-version").write_text("3.13.4\n" if script == "run_proxy.sh" else "3.13\n")
    made.extra["FAKE_PIP_IS_KILLED"] = "yes"
    made.run(script=script, status=-9)
    made.extra.clear()
    before = made.set_ups()
    _, err = made.run()
    assert made.set_ups() == before + 1
    assert "waiting" not in err


@pytest.mark.parametrize(
    ("what", "says"),
    [("FAKE_PIP_FAILS", "No matching distribution"), ("FAKE_VENV_FAILS", "ensurepip is not available")],
)
def test_a_failed_set_up_is_shown_and_tried_again_by_the_next_start(checkout: Checkout, what: str, says: str) -> None:
    checkout.extra[what] = "yes"
    out, err = checkout.run(status=1)
    assert out == []
    assert says in err
    assert "the set-up failed" in err
    checkout.extra.clear()
    checkout.run()


def test_dev_dependencies_that_cannot_be_had_leave_the_proxy_s_as_they_are(made: Checkout) -> None:
    made.extra["FAKE_PIP_FAILS"] = "yes"
    _, err = made.run(script="run_tests.sh", status=1)
    assert "No matching distribution" in err
    _, err = made.run()
    assert err == ""
    assert made.set_ups() == 1


def test_two_starts_at_once_make_one_set_up(checkout: Checkout) -> None:
    gate = checkout.home / "gate"
    for end in ("in", "out"):
        os.mkfifo(f"{gate}.{end}")
    checkout.extra["FAKE_PIP_WAITS"] = str(gate)
    entered, closed = (os.open(f"{gate}.{end}", os.O_RDWR) for end in ("in", "out"))
    starts = [checkout.start()]
    try:
        assert select.select([entered], [], [], BOUND)[0], "the first start never came to pip"
        starts.append(checkout.start())
        waits = starts[1].stderr
        assert waits is not None
        assert select.select([waits], [], [], BOUND)[0]
        assert "waiting for another set-up" in waits.readline()
        os.close(closed)  # the gate is open: pip goes on
        for start in starts:
            start.communicate(timeout=BOUND)
    finally:
        os.close(entered)
        for start in starts:
            start.kill()
    assert [start.returncode for start in starts] == [0, 0]
    assert checkout.set_ups() == 1


def test_every_requirement_is_pinned_by_name_and_version_alone() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = {re.fullmatch(r"([A-Za-z0-9._-]+)==[A-Za-z0-9.+!]+", line) for line in lines}
    names = {pin[1].lower().replace("_", "-") for pin in pins if pin}
    assert len(names) == len(lines)
    command = [sys.executable, str(ROOT / "scripts/requirements.py"), "runtime", "dev"]
    wanted = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {re.split(r"[<>=!~\[]", line)[0].lower() for line in wanted} <= names


def test_uv_is_used_where_it_is_there(checkout: Checkout) -> None:
    checkout.script(checkout.bin / "uv", UV)
    checkout.run()
    assert "uv venv" in checkout.log
    assert "uv pip install" in checkout.log
    assert "wants mitmproxy" in checkout.log
    assert "-m pip" not in checkout.log


def test_the_venv_has_the_command_and_finds_the_packages(made: Checkout) -> None:
    assert (made.root / ".venv/site/toolgraft.pth").read_text() == f"{made.root}\n"
    command = made.root / ".venv/bin/toolgraft"
    done = subprocess.run([command, "token", "a b"], capture_output=True, text=True, env=made.environment, check=True)
    assert done.stdout == "-P -m addon token a b\n"


# --- what is started ----------------------------------------------------------------------------------------------


def test_without_a_command_the_proxy_is_served_with_all_arguments(made: Checkout) -> None:
    assert made.run()[0] == ["-P -m addon serve"]
    assert made.run("--set", "graft_store=memory://", "~u demo")[0] == [
        "-P -m addon serve --set graft_store=memory:// ~u demo"
    ]


def test_the_checkout_goes_before_the_user_s_pythonpath(made: Checkout) -> None:
    made.extra["PYTHONPATH"] = "/mine"
    made.extra["FAKE_SHOWS"] = "yes"
    assert made.run()[0][1:] == [f"{made.root}:/mine", str(made.home)]  # the user's folder stays the current one


@pytest.mark.parametrize("command", [*sorted(getattr(get_command(app), "commands", {})), "aprove", "Calls"])
def test_a_word_that_comes_first_is_a_command_also_where_it_is_misspelt(made: Checkout, command: str) -> None:
    assert made.run(command, "--json") == ([f"-P -m addon {command} --json"], "")


@pytest.mark.parametrize("closed", ["", "1", "2", "12"])
def test_a_stdout_or_stderr_that_is_closed_is_opened_again(made: Checkout, closed: str) -> None:
    """Python has none where there is none, and mitmproxy does not start then."""
    made.extra["FAKE_OPEN"] = str(made.home / "open")
    closing = " ".join(f"{number}>&-" for number in closed)
    made.script(made.root / "start.sh", f'#!/bin/sh\nexec "{made.root}/run_proxy.sh" {closing}\n')
    made.run(script="start.sh")
    assert (made.home / "open").exists()


# --- run_tests.sh -------------------------------------------------------------------------------------------------


def test_the_tests_add_the_dev_dependencies_to_the_same_venv_once(made: Checkout) -> None:
    _, err = made.run(script="run_tests.sh")
    assert "installing the dev dependencies" in err
    assert "wants pytest" in made.log
    assert made.set_ups() == 1
    before = made.log.count("wants")
    made.run(script="run_tests.sh")
    made.run()
    assert made.log.count("wants") == before


def steps_of(output: str) -> list[str]:
    """What was run, each with its time behind it."""
    lines = [line.removeprefix("toolgraft: ") for line in output.splitlines() if "installing" not in line]
    assert all(re.fullmatch(r"\d+ s", line) for line in lines[1::2]), lines
    return lines[::2]


def test_every_check_runs_and_pytest_has_the_last_word(made: Checkout) -> None:
    out, err = made.run(script="run_tests.sh")
    assert steps_of(err) == [
        "ruff check --quiet .",
        "ruff format --quiet --check .",
        "mypy",
        "lint-imports --no-logo",
        "bounded 1200 python -m pytest --numprocesses auto -m not e2e --ignore tests/e2e",
        "bounded 2700 python -m pytest -m e2e",
    ]
    assert out[-2].endswith("python -m pytest --numprocesses auto -m not e2e --ignore tests/e2e")
    assert out[-1].endswith("python -m pytest -m e2e")


def test_the_checks_run_without_the_tests(made: Checkout) -> None:
    _, err = made.run("--checks", script="run_tests.sh")
    steps = ["ruff check --quiet .", "ruff format --quiet --check .", "mypy", "lint-imports --no-logo"]
    assert steps_of(err) == steps


def test_long_tests_run_if_they_are_asked_for(made: Checkout) -> None:
    _, err = made.run("--long", script="run_tests.sh")
    steps = [step.split() for step in steps_of(err)]
    modules = ["tests.simulation", "tests.fuzz", "pytest", "tests.soak", "tests.crash", "tests.crash"]
    assert [step[4] for step in steps] == modules
    assert all(step[0] == "bounded" and int(step[1]) <= 2000 for step in steps), "a hang fails before CI gives up"


@pytest.mark.parametrize("check", ["ruff", "mypy", "lint-imports"])
def test_the_first_check_that_fails_is_named_and_ends_it(made: Checkout, check: str) -> None:
    made.extra["FAKE_CHECK_FAILS"] = check
    out, err = made.run(script="run_tests.sh", status=1)
    assert err.splitlines()[-1].startswith(f"toolgraft: failed: {check}")
    assert "-m pytest" not in out


def test_arguments_go_to_pytest_and_nothing_else_runs(made: Checkout) -> None:
    out, _ = made.run("tests/core", "-k", "sse", script="run_tests.sh")
    assert out == ["-m pytest tests/core -k sse"]


# --- what is known of the packages --------------------------------------------------------------------------------


class Vulnerabilities:
    """A service of the Open Source Vulnerabilities' kind that knows one vulnerable package."""

    def __init__(self, package: str) -> None:
        asked = self.asked = set[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                query = json.loads(self.rfile.read(int(self.headers["content-length"])))
                asked.add(query["package"]["name"])
                known = {"id": "X-1", "summary": "Bad.", "modified": "2026-01-01T00:00:00Z", "affected": []}
                found = json.dumps({"vulns": [known]} if query["package"]["name"] == package else {}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(found)))
                self.end_headers()
                self.wfile.write(found)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/query"

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def audit(made: Checkout, url: str, status: int) -> str:
    cache = str(made.home / "cache")
    more = ("--vulnerability-service", "osv", "--osv-url", url, "--cache-dir", cache)
    out, err = made.run(*more, script="scripts/audit.sh", status=status)
    return "\n".join([*out, err])


def test_the_audit_asks_for_each_pinned_package_and_names_what_is_vulnerable(made: Checkout) -> None:
    with Vulnerabilities("none") as service:
        assert "No known vulnerabilities found" in audit(made, service.url, status=0)
        pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
        assert {canonicalize_name(name) for name in pins} == service.asked
    with Vulnerabilities("httpx2") as service:
        assert re.search(r"httpx2\s+\S+\s+X-1", audit(made, service.url, status=1))


def test_an_audit_that_could_not_ask_has_failed(made: Checkout) -> None:
    with Vulnerabilities("none") as service:
        url = service.url
    assert "the service knows nothing of it or cannot be reached" in audit(made, url, status=1)


# --- bounds -------------------------------------------------------------------------------------------------------


def bounded(seconds: float, *command: str, starter: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    script = [*starter, sys.executable, "-I", str(ROOT / "scripts" / "bounded.py"), str(seconds), *command]
    return subprocess.run(script, capture_output=True, text=True, timeout=BOUND, check=False)


@pytest.mark.parametrize(("word", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)])
def test_a_command_that_is_over_in_time_has_its_own_status(word: str, status: int) -> None:
    done = bounded(BOUND, "sh", "-c", f"echo done; {word}")
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", status)


@pytest.mark.parametrize("starter", [(), ("sh", "-c", '"$0" "$@" & wait $!')], ids=["", "in the background"])
def test_a_command_that_hangs_says_where_and_is_ended_with_what_it_started(starter: tuple[str, ...]) -> None:
    hangs = """
import subprocess
try:
    subprocess.run(["sh", "-c", "sleep 1000 & sleep 1000"])  # what is left behind would keep the pipes open
finally:
    print("here")
"""
    done = bounded(3, sys.executable, "-c", hangs, starter=starter)
    assert (done.stdout, done.returncode) == ("here\n", 124)
    assert "not over after 3 s: " in done.stderr
    assert "KeyboardInterrupt" in done.stderr
