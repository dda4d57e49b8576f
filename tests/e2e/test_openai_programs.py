"""Programs on OpenAI's package, its Agents SDK and the AI SDK, unmodified: the examples, and turns by all means."""

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import openai
import platformdirs
import pytest

from tests.e2e.chats import CLIENTS, installed
from tests.e2e.processes import ROOT, environment
from tests.e2e.proxies import Proxy, new_session
from tests.e2e.test_doors import KEY, MODEL, WEATHER, calls, client, client_of, doors, output
from tests.e2e.upstreams import Gemini

__all__ = ["client", "doors"]

AI_SDK = ("ai@6.0.326", "@ai-sdk/openai@3.0.141", "zod@4.6.7")
OPENAI_JS = ("openai@6.49.0",)
AGENTS = "openai-agents==0.24.0"
LANGCHAIN = "langchain-openai==1.7.3"
PYDANTIC_AI = "pydantic-ai-slim[openai,google]==2.68.0"
QUESTION = (
    'call get_coordinates {"place": "Oslo"} then call get_weather {"latitude": 59.91, "longitude": 10.75} '
    'then call pack {"celsius": -3}'
)
CARRIES: dict[str, Any] = {"store": False, "include": ["reasoning.encrypted_content"]}


# --- the examples -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def travel(tmp_path_factory: pytest.TempPathFactory, strict: Gemini) -> Iterator[Proxy]:
    """With the tools that the examples use."""
    tools = str(ROOT / "examples" / "weather.py")
    proxy = Proxy(tmp_path_factory.mktemp("travel"), strict.url, tools=tools, environ=KEY)
    yield proxy
    proxy.stop()


def run(proxy: Proxy, home: Path, *command: str | Path, **environ: str) -> str:
    more = {"OPENAI_BASE_URL": f"{proxy.control.url}/v1", "OPENAI_API_KEY": proxy.control.token, **environ}
    done = subprocess.run(
        command, env=environment(home, **more), capture_output=True, text=True, timeout=120, cwd=home, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_answer(printed: str, gemini: Gemini) -> None:
    assert 'get_weather returned {"sky": "snow", "celsius": -3' in printed
    assert "a coat" in printed.partition("pack returned")[2]
    assert (gemini.errors, gemini.dummy_signatures) == ([], 0)


def test_the_example_on_openai_s_package(travel: Proxy, gemini: Gemini, tmp_path: Path) -> None:
    check_answer(run(travel, tmp_path, sys.executable, ROOT / "examples" / "openai_client.py", QUESTION), gemini)


def test_the_example_on_openai_s_agents_sdk(travel: Proxy, gemini: Gemini, tmp_path: Path) -> None:
    path = os.pathsep.join(map(str, (python_package(AGENTS), ROOT)))
    program = ROOT / "examples" / "openai_agents.py"
    check_answer(run(travel, tmp_path, sys.executable, program, QUESTION, PYTHONPATH=path), gemini)


def test_the_example_on_the_ai_sdk(travel: Proxy, gemini: Gemini, tmp_path: Path) -> None:
    program = beside_packages(ROOT / "examples" / "ai_sdk.mjs", tmp_path)
    check_answer(run(travel, tmp_path, "node", program, QUESTION), gemini)


def beside_packages(program: Path, folder: Path, packages: tuple[str, ...] = AI_SDK) -> Path:
    """A copy of a program where node finds these packages."""
    (folder / "node_modules").symlink_to(installed(*packages).parent)
    return Path(shutil.copy(program, folder))


def python_package(requirement: str) -> Path:
    """The folder of a package from PyPI with all that it needs, put into the user's cache once."""
    folder, why = _python_package(requirement)
    if folder is None:
        pytest.skip(why)
    return folder


@functools.cache
def _python_package(requirement: str) -> tuple[Path | None, str]:
    name = f"{requirement}-python{sys.version_info.major}.{sys.version_info.minor}"
    folder = platformdirs.user_cache_path("toolgraft-tests") / name
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder / ".lock", timeout=300):
        done = folder / ".installed"
        if not done.exists():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), requirement]
            try:
                ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
            except subprocess.TimeoutExpired:
                return None, f"{requirement} could not be installed within 280 s"
            if ran.returncode != 0:
                return None, f"{requirement} could not be installed:\n{ran.stderr}"
            done.touch()
    return folder, ""


# --- turns --------------------------------------------------------------------------------------------------------


def test_turns_of_the_ai_sdk_by_all_its_means(doors: Proxy, gemini: Gemini, tmp_path: Path) -> None:
    program = beside_packages(CLIENTS / "ai_sdk.mjs", tmp_path)
    check_turns(doors, gemini, tmp_path, program, "references stateless chat conversation previous")


def test_turns_of_openai_s_package_for_javascript(doors: Proxy, gemini: Gemini, tmp_path: Path) -> None:
    program = beside_packages(CLIENTS / "openai.mjs", tmp_path, OPENAI_JS)
    check_turns(doors, gemini, tmp_path, program, "previous conversation references stateless chat")


def check_turns(doors: Proxy, gemini: Gemini, home: Path, program: Path, kinds: str) -> None:
    """`kinds`: those that the program prints, each without a stream and with one."""
    session = new_session(doors, tools=False).name
    printed = run(doors, home, "node", program, SESSION=session)
    found = [json.loads(line) for line in printed.splitlines()]
    assert [(one["kind"], one["stream"]) for one in found] == [
        (kind, stream) for kind in kinds.split() for stream in (False, True)
    ]
    for one in found:
        for text in one["texts"]:
            assert 'weather returned {"city": "Oslo", "celsius": 4}' in text, one
            assert 'note returned {"noted": 3}' in text, one
    assert (gemini.errors, gemini.dummy_signatures) == ([], 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_keeps_its_history_carries_the_signatures(
    client: openai.OpenAI, gemini: Gemini, stream: bool
) -> None:
    items: list[Any] = []
    for n in range(3):
        items.append(
            {"role": "user", "content": 'call get_weather {"city": "Oslo"} then call weather {"city": "Rome"}'}
        )
        for _ in range(2):
            if stream:
                with client.responses.stream(model=MODEL, input=items, tools=[WEATHER], **CARRIES) as events:
                    for _event in events:
                        pass
                    response: Any = events.get_final_response()
            else:
                response = client.responses.create(model=MODEL, input=items, tools=[WEATHER], **CARRIES)
            items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
            items += [output(call, celsius=n) for call in calls(response)]
        assert 'weather returned {"city": "Rome"' in response.output_text
    sealed = [item for item in items if item.get("type") == "reasoning"]
    assert sealed
    assert all(item["encrypted_content"] for item in sealed)


def test_a_program_keeps_its_model_s_name_and_learns_what_is_ignored(strict: Gemini, tmp_path: Path) -> None:
    strict.forget()
    proxy = Proxy(tmp_path, strict.url, environ=KEY, model_aliases="gpt-5=gemini-3-flash", lenient="on")
    try:
        with client_of(proxy) as client:
            raw = client.responses.with_raw_response.create(model="gpt-5", input="What is 2+2?", prompt={"id": "p"})
            assert raw.headers["x-graft-ignored"] == "prompt"
            assert raw.parse().output_text == "2 + 2 = 4."
            assert "gpt-5" in [model.id for model in client.models.list()]
            assert client.models.retrieve("gpt-5").id == "gpt-5"
    finally:
        proxy.stop()


@pytest.mark.long  # the packages have to be installed
@pytest.mark.parametrize(
    ("requirements", "program", "kinds"),
    [
        (LANGCHAIN, "langchain_client.py", ("history", "content blocks", "stateless", "previous", "chat")),
        (PYDANTIC_AI, "pydantic_ai_client.py", ("responses", "stateless", "previous", "chat", "google")),
    ],
    ids=["LangChain", "pydantic-ai"],
)
def test_turns_of_a_framework_by_all_its_means(
    doors: Proxy, gemini: Gemini, tmp_path: Path, requirements: str, program: str, kinds: tuple[str, ...]
) -> None:
    session = new_session(doors, tools=False)
    session.policy(client_tools="keep")
    path = os.pathsep.join(map(str, (python_package(requirements), ROOT)))
    environ = {"SESSION": session.name, "GOOGLE_GEMINI_BASE_URL": f"{doors.url}/@{session.name}", "PYTHONPATH": path}
    printed = run(doors, tmp_path, sys.executable, CLIENTS / program, **environ)
    found = [json.loads(line) for line in printed.splitlines()]
    turns = [one for one in found if "texts" in one]
    assert [(one["kind"], one["stream"]) for one in turns] == [(kind, bool(n)) for kind in kinds for n in range(2)]
    for one in turns:
        assert len(one["texts"]) == 3
        for text in one["texts"]:
            assert 'weather returned {"city": "Oslo", "celsius": 4}' in text, one
            assert 'note returned {"noted": 3}' in text, one
    structured = [one for one in found if one["kind"] == "structured"]
    assert structured
    assert all(isinstance(one["city"]["people"], int) for one in structured)
    assert (gemini.errors, gemini.dummy_signatures) == ([], 0)
