"""What tools and models say stays on its line, and no terminal obeys it: in the log, the console and the commands."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from addon.cli import output
from addon.core.security.untrusted import printable, printable_json
from addon.hooks.secrets import Masking, _Masked, _Records
from addon.loop.call_run import logger as calls_logger
from addon.monitoring.own_secrets import own_secrets
from addon.tools.mcp_config import Server
from addon.tools.mcp_servers import McpSource
from tests.loop.conftest import until

FORGED = "no\n[12:00:00.000] call approved by admin\r\x1b[2J\x9b2J \u202eeslaf\u2028"
SPELLED = r"no\n[12:00:00.000] call approved by admin\r\x1b[2J\x9b2J \u202eeslaf\u2028"


@pytest.fixture(autouse=True)
def records() -> Iterator[None]:
    before = logging.getLogRecordFactory()
    Masking().load(None)
    Masking().load(None)  # a second addon of the process
    made: Any = logging.getLogRecordFactory()
    assert isinstance(made, _Records)
    yield
    logging.setLogRecordFactory(before)


def test_a_message_of_the_log_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    calls_logger.warning("the tool %s failed: %s", "lookup", FORGED)
    logging.getLogger("addon.tools.mcp_servers").warning(FORGED)
    assert [record.getMessage() for record in caplog.records] == [f"the tool lookup failed: {SPELLED}", SPELLED]


async def test_lines_of_an_mcp_server_s_stderr_are_too(caplog: pytest.LogCaptureFixture) -> None:
    script = f"import sys; sys.stderr.write({FORGED!r})"
    caplog.set_level(logging.INFO)
    async with McpSource("s", Server(command=sys.executable, args=["-c", script]), start_timeout=5):
        await until(lambda: "admin" in caplog.text)
    messages = [record.getMessage() for record in caplog.records if record.name == "addon.tools.mcp_connection"]
    assert any("call approved by admin" in one for one in messages)
    assert all(one.isprintable() for one in messages)
    assert not any(one.startswith("[12:00") for one in messages)


def test_a_traceback_is_indented(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        calls_logger.exception("a call failed")
    first, *others = caplog.records[0].getMessage().split("\n")
    assert first == "a call failed"
    assert others[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") and line.isprintable() for line in others)


def test_the_log_of_mitmproxy_keeps_its_lines_and_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    own_secrets.learn(["a-secret-of-the-proxy-1"])
    logging.getLogger("mitmproxy.proxy.server").warning(
        "two\nlines \x1b[2J a-secret-of-the-proxy-1 https://h/?%6bey=s3cret-2"
    )
    assert caplog.records[0].getMessage() == "two\nlines \\x1b[2J *** https://h/?%6bey=***"


def test_a_message_that_cannot_be_made_is_left_to_logging() -> None:
    assert logging.getLogRecordFactory()("toolgraft", 30, "f", 1, "%d", ("no number",), None).args == ("no number",)


def test_the_console_keeps_mitmproxy_s_colours_alone() -> None:
    file = io.StringIO()
    print("\x1b[34mblue\x1b[0m\ttab \x1b]0;title\x07 \x9b2J \u202e", file=_Masked(file))
    assert file.getvalue() == "\x1b[34mblue\x1b[0m    tab \\x1b]0;title\\x07 \\x9b2J \\u202e\n"


def test_commands_print_it_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"text": FORGED, FORGED: 1})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"text": FORGED, FORGED: 1}
    assert len(printed.splitlines()) == 4
    assert all(line.isprintable() for line in printed.splitlines())
    output.note(FORGED)
    assert capsys.readouterr().err == f"toolgraft: {SPELLED}\n"
    assert output.plain(FORGED) == SPELLED


HIDDEN = (
    *(
        "\u034f",
        "\u1160",
        "\u115f",
        "\u3164",
        "\uffa0",
        "\u17b4",
        "\u180e",
        "\ufe00",
        "\U000e0100",
        "\U000e01ef",
        "\u2800",
    ),
    *("\u200b", "\u2066", "\U000e0041", "\ufeff", "\x00", "\x85", "\ud800"),
)


@pytest.mark.parametrize("hidden", HIDDEN, ids=map(ascii, HIDDEN))
def test_what_nobody_can_see_is_written_out(hidden: str) -> None:
    for text in (printable(f"a{hidden}b"), printable_json(json.dumps(f"a{hidden}b", ensure_ascii=False))):
        assert hidden not in text
        assert "\\" in text
    assert json.loads(text) == f"a{hidden}b"


def test_what_can_be_seen_stays() -> None:
    text = "naïve 日本語 한국어 ❤\ufe0f 👍 ﷼ اللغة"
    assert printable(text) == printable_json(text) == text
