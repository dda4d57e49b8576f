"""The toolgraft.toml that `toolgraft init` writes."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from addon.options import USUAL, Option

_GEMINI = "https://generativelanguage.googleapis.com"

_HEAD = """\
# The configuration of toolgraft: docs/configuration.md describes it, docs/options.md lists all options.
# `toolgraft config check` checks it, and `toolgraft config` shows what holds and where it is set.
# What the command line sets (`--set graft_NAME=VALUE`) outranks this file.

# The ports. The regular proxy needs mitmproxy's CA in its clients; the reverse proxy is a base URL for Gemini.
"""
_TAIL = """\
# MCP servers, with the fields of the usual mcpServers files. ${NAME} is an environment variable.
# [mcpServers.time]
# command = "uvx"
# args = ["mcp-server-time"]
# prefix = "time_"

# A session has settings of its own (client_tools, delivery, on_pending, the time limits and others), and tools, here or
# in a JSON file (toolset = "work.json"). A client names its session in the path: http://127.0.0.1:8081/@work
# [sessions.work]
# delivery = "hold"
#
# [[sessions.work.tools]]
# name = "get_weather"
# description = "The weather of a city, now."
# approval = true
# parameters = { type = "object", properties.city.type = "string", required = ["city"] }
"""


@dataclass(frozen=True)
class Answers:
    """The answers to the questions of `init`. `port`: of the reverse proxy."""

    port: int = 8081
    client_tools: str = "strip"
    delivery: str = "auto"
    tools: Sequence[str] = ()
    mcp: Sequence[str] = ()


def config_text(answers: Answers) -> str:
    return "".join(_lines(answers))


def _lines(answers: Answers) -> Iterator[str]:
    regular = 8080 if answers.port != 8080 else 8081
    yield _HEAD
    yield f'modes = ["regular@{regular}", "reverse:{_GEMINI}@{answers.port}"]\n\n'
    yield "# Options behind a # have their defaults. Paths start from the folder of this file.\n[options]\n"
    chosen = {
        "client_tools": quoted(answers.client_tools),
        "delivery": quoted(answers.delivery),
        "tools": _list(answers.tools),
        "mcp": _list(answers.mcp),
    }
    for option in USUAL:
        yield "".join(f"# {line}\n" for line in textwrap.wrap(option.help, 110))
        value = chosen.get(option.key, "[]")
        yield f"#{option.key} = {_default(option)}\n\n" if value == "[]" else f"{option.key} = {value}\n\n"
    yield _TAIL


def quoted(text: str) -> str:
    """The text as a basic string of TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def _list(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(quoted, texts))}]"


def _default(option: Option) -> str:
    if option.typespec is not str:
        return "[]"
    text = str(option.default)
    return text if text.isdigit() else quoted(text)
