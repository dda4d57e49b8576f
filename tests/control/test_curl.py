"""A command line with curl gives a shell exactly the request."""

import json
import subprocess

import pytest

from addon.control.routes.requests import curl_command

ODD = 'it\'s a "text" with $HOME, `id`, \\ and a\nline \u202e!'


def given(command: str) -> tuple[list[str], bytes]:
    """What a shell gives to curl: the arguments and the standard input."""
    program = "import os,sys,json; print(json.dumps([sys.argv[1:], '@-' in sys.argv and sys.stdin.read() or '']))"
    variables = "export GEMINI_API_KEY='the key' ACCESS_TOKEN=tok X_OTHER_SECRET=s3"
    script = variables + '\ncurl() { python3 -c "$P" "$@"; }\n'
    done = subprocess.run(
        ["bash", "-s"],
        input=f"{script}{command}\n".encode(),
        capture_output=True,
        env={"P": program, "PATH": "/usr/bin:/bin"},
        check=True,
        timeout=60,
    )
    arguments, stdin = json.loads(done.stdout)
    return arguments, stdin.encode()


def test_curl_does_not_take_brackets_of_a_url_for_a_range() -> None:
    arguments, _ = given(curl_command("POST", "http://m.example/v1/models/a[1-2]{b}:c", [], b"{}", secret="SECRET"))
    assert arguments[2:4] == ["http://m.example/v1/models/a[1-2]{b}:c", "--globoff"]


def test_a_shell_gives_curl_the_request() -> None:
    body = json.dumps({"contents": [{"parts": [{"text": ODD}]}]}, ensure_ascii=False).encode()
    command = curl_command(
        "POST",
        "https://models.example/v1beta/models/m:generateContent?key=SECRET&alt=sse&token=SECRET",
        [
            *(("content-type", "application/json"), ("x-note", "it's $5"), ("x-goog-api-key", "SECRET")),
            *(("authorization", "SECRET"), ("x-other-secret", "SECRET")),
        ],
        body,
        secret="SECRET",
        options=["--cacert", "/a path/ca.pem"],
    )
    assert "\u202e" not in command
    arguments, _ = given(command)
    assert arguments[:3] == [
        "-X",
        "POST",
        "https://models.example/v1beta/models/m:generateContent?key=the key&alt=sse&token=the key",
    ]
    assert arguments[3:5] == ["--cacert", "/a path/ca.pem"]
    assert arguments[5:15:2] == ["-H"] * 5
    assert arguments[6:15:2] == [
        "content-type: application/json",
        "x-note: it's $5",
        "x-goog-api-key: the key",
        "authorization: Bearer tok",
        "x-other-secret: s3",
    ]
    assert arguments[15] == "--data-raw"
    assert json.loads(arguments[16]) == json.loads(body)


def test_a_long_body_is_the_standard_input() -> None:
    body = json.dumps({"text": f"{ODD}" * 20_000}, indent=1).encode() + b"\nEND\n"
    arguments, stdin = given(curl_command("POST", "http://m.example/", [], body, secret="SECRET"))
    assert arguments[-2:] == ["--data-binary", "@-"]
    assert stdin.rstrip(b"\n") == body.rstrip(b"\n")


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(UnicodeDecodeError):
        curl_command("POST", "http://m.example/", [], b"\xff", secret="SECRET")
