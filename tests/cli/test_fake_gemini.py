"""`toolgraft fake-gemini`, as a user runs it."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import addon

pytestmark = pytest.mark.e2e
ROOT = Path(addon.__path__[0]).parent
COMMAND = [sys.executable, "-P", "-m", "addon", "fake-gemini"]
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
QUESTION = {"contents": [{"role": "user", "parts": [{"text": "say Hello."}]}]}


@pytest.fixture
def url() -> Iterator[str]:
    with subprocess.Popen([*COMMAND, "--port", "0"], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().removeprefix("listening on ").strip()
        finally:
            process.terminate()
            process.wait(timeout=15)


def test_it_answers_a_question(url: str) -> None:
    path = "v1beta/models/gemini-3-flash-preview:generateContent"
    headers = {"Content-Type": "application/json", "x-goog-api-key": "any"}
    request = urllib.request.Request(f"{url}/{path}", json.dumps(QUESTION).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert json.load(answer)["candidates"][0]["finishReason"] == "STOP"
    with urllib.request.urlopen(f"{url}/_demo/requests", timeout=10) as answer:
        assert [one["body"] for one in json.load(answer)] == [QUESTION]


def test_a_wrong_shape_is_refused_in_one_line() -> None:
    done = subprocess.run([*COMMAND, "--shape", "square"], env=ENVIRONMENT, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("toolgraft: --shape: ")
    assert "square" in done.stderr


def test_a_port_in_use_is_named(url: str) -> None:
    port = url.rpartition(":")[2]
    done = subprocess.run([*COMMAND, "--port", port], env=ENVIRONMENT, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"toolgraft: cannot listen on 127.0.0.1:{port}: ")
