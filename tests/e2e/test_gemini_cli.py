"""The published gemini-cli, unmodified, whose questions are answered by loops. It takes the usage of an answer for the
size of its context, and compresses its history or stops if the context grows too large."""

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from addon.console.connect import is_from
from addon.fake_gemini.rules import Options
from tests.e2e import chats
from tests.e2e.processes import environment, until
from tests.e2e.proxies import TOOLS, Proxy
from tests.e2e.terminals import Terminal
from tests.e2e.upstreams import Gemini

Json = dict[str, Any]

CLI = "@google/gemini-cli@0.61.0"
MODEL = "gemini-3-flash-preview"
CITIES = ("Rome", "Oslo", "Bern", "Lima", "Paris", "Tokyo", "Rio", "Cairo")
QUESTION = " then ".join(f'call weather {{"city": "{city}"}}' for city in CITIES)
ANSWER = " ".join(f'weather returned {{"city": "{city}", "celsius": {len(city)}}}.' for city in CITIES)
PROMPT = 120_000
"""Tokens that each of the nine rounds reports as its prompt; the context of the model holds 1,048,576."""

SETTINGS: Json = {
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
}


@pytest.fixture
def large() -> Iterator[Gemini]:
    """The strict server, with a prompt of 120,000 tokens in every round."""
    with Gemini(options=Options(prompt_tokens=PROMPT)) as gemini:
        yield gemini


@pytest.fixture
def proxy(large: Gemini, start: Callable[..., Proxy]) -> Proxy:
    return start(large.url, tools=str(TOOLS))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    (folder / ".gemini").mkdir(parents=True)
    (folder / ".gemini" / "settings.json").write_text(json.dumps(SETTINGS))
    (folder / "work").mkdir()
    return folder


def command(*arguments: str) -> list[str | Path]:
    return ["node", chats.installed(CLI) / "bundle" / "gemini.js", "--model", MODEL, "--skip-trust", *arguments]


def environ(home: Path, proxy: Proxy) -> dict[str, str]:
    return environment(
        home, GEMINI_API_KEY="a-secret-key", GOOGLE_GEMINI_BASE_URL=proxy.url, TERM="xterm-256color", NO_BROWSER="1"
    )


def test_the_usage_of_nine_rounds_is_the_prompt_of_the_last_and_the_output_of_all(
    proxy: Proxy, home: Path, large: Gemini
) -> None:
    ran = subprocess.run(
        command("--output-format", "json", "--prompt", QUESTION),
        cwd=home / "work",
        env=environ(home, proxy),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    answered = json.loads(ran.stdout)
    assert answered["response"] == ANSWER
    assert (len(large.requests), large.errors) == (9, [])
    (turn,) = proxy.control.session("default").turns()
    rounds = [(usage["promptTokenCount"], usage["candidatesTokenCount"]) for usage in turn["usage"]]
    assert [prompt for prompt, _ in rounds] == [PROMPT] * 9, "the true figures are in the turn's record"
    (request, *_) = proxy.control.ask("GET", "/v1/requests")["items"]
    assert is_from("gemini-cli", request["user_agent"]), "the console knows it by that"
    output_tokens = sum(output for _, output in rounds)
    tokens = answered["stats"]["models"][MODEL]["tokens"]
    assert (tokens["prompt"], tokens["candidates"], tokens["total"]) == (PROMPT, output_tokens, PROMPT + output_tokens)


def test_a_chat_goes_on_after_nine_rounds_with_its_history_as_it_was(proxy: Proxy, home: Path, large: Gemini) -> None:
    asked = command("--screen-reader", "--prompt-interactive", QUESTION)
    with Terminal(asked, home / "work", environ(home, proxy)) as terminal:
        terminal.wait_for(CITIES[-1] + '", "celsius"')
        terminal.wait_for("Ready")
        large.forget()
        mark = terminal.mark()
        terminal.press("repeat the results")
        terminal.wait_for("repeat the results", after=mark)

        def sent() -> bool:
            # The first may be taken for a part of what was pasted; two at once would ask twice.
            terminal.press("\r")
            with contextlib.suppress(TimeoutError):
                until(lambda: large.requests, "the question is there", 2)
            return bool(large.requests)

        until(sent, "the question is sent")
        terminal.wait_for("weather returned", after=mark)
        assert "compressed" not in terminal.text[mark:]
    assert large.errors == []
    assert [request["path"].rpartition(":")[2] for request in large.requests] == ["streamGenerateContent?alt=sse"]
    parts = [part for content in large.last["body"]["contents"] for part in content["parts"]]
    responses = [part["functionResponse"]["response"] for part in parts if "functionResponse" in part]
    assert [response["city"] for response in responses] == list(CITIES)
