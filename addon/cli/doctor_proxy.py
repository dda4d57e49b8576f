"""Checks of the running proxy, or of the files that a start would use: toolgraft.toml, state folder, store, tools."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
import typer

from addon.cli import output
from addon.cli.doctor import Finding
from addon.config_file.choice import chosen_file
from addon.config_file.reading import load_config


def config() -> Iterator[Finding]:
    """Yields nothing without a file."""
    try:
        chosen = chosen_file(None)
        if chosen.notice is not None:
            yield Finding("config", "note", chosen.notice, "to use it, read it and run toolgraft trust")
        if chosen.path is not None:
            load_config(chosen.path, trusted=chosen.trusted)
            yield Finding("config", "ok", f"{chosen.path} fits")
    except (OSError, ValueError) as error:
        yield Finding("config", "wrong", str(error), "correct the line; toolgraft config check checks it")


if TYPE_CHECKING:
    from addon.cli.api import Api

_SMALL_DISK = 200 * 1024 * 1024
_PLACE = frozenset({"developer"})
"""The strict local Gemini's name for the Gemini API."""
_LARGEST_CHECKED = 256 * 1024 * 1024
"""The most bytes of a database that is checked completely."""


def version_at(url: str) -> str:
    """The version of the proxy with its control API at this URL; "" if none answers."""
    try:
        answer = httpx2.get(f"{url}/healthz/live", timeout=3, trust_env=False)
        return str(answer.json()["version"])
    except (httpx2.HTTPError, ValueError, KeyError, TypeError):
        return ""


def proxy(api: "Api", version: str) -> Iterator[Finding]:
    """Checks of a proxy that answers: its store, MCP servers and tools."""
    yield Finding("proxy", "ok", f"toolgraft {version} runs, with its control API at {api.url}")
    if problem := api.problem("/healthz"):
        yield Finding("store", "wrong", problem, "the proxy's log says why; for a damaged store: toolgraft check")
    else:
        yield Finding("store", "ok", "the store can be written to")
    try:
        yield from _servers(api)
        if not problem:
            yield from _tools(api)
    except typer.Exit:  # the message was printed
        message = "the proxy refuses what this check asks for"
        yield Finding("token", "wrong", message, "set TOOLGRAFT_TOKEN to the token of the proxy, or unset it")


def folder(state: Path) -> Iterator[Finding]:
    """Checks of the state folder and the store in it, while no proxy runs."""
    from addon.state_folder import check_folder
    from store import care
    from store.base import StoreError

    try:
        check_folder(state)
    except OSError as error:
        yield Finding("state", "wrong", str(error), "see the message")
        return
    yield Finding("proxy", "note", "no proxy runs for this user", "./run_proxy.sh")
    place = next(path for path in (state, *state.parents) if path.exists())
    if (free := shutil.disk_usage(place).free) < _SMALL_DISK:
        message = f"the disk of {state} has only {free // 2**20} MiB left"
        yield Finding("store", "wrong", message, "free some space, or choose another folder (graft_state)")
    database = state / "toolgraft.db"
    if not database.exists():
        yield Finding("store", "ok", f"there is no store yet; the first start makes {database}")
    elif database.stat().st_size > _LARGEST_CHECKED:
        yield Finding("store", "unknown", f"{database} is large, and was not read", "toolgraft check")
    else:
        try:
            wrong = care.check(database)
        except StoreError as error:
            wrong = [str(error)]
        if wrong:
            yield Finding("store", "wrong", f"{database}: {wrong[0]}", "toolgraft recover")
        else:
            yield Finding("store", "ok", f"{database} is whole")


def _servers(api: "Api") -> Iterator[Finding]:
    for server in api.get("/v1/servers")["items"]:
        if server["is_up"]:
            yield Finding("mcp", "ok", f"MCP server {server['name']} is up, with {server['tools']} tools")
        else:
            message = f"MCP server {server['name']} is down: {server['error'] or 'it is not started yet'}"
            yield Finding("mcp", "wrong", message, "check its entry in the file that graft_mcp names")
    if names := [one["name"] for one in api.get("/v1/mcp/held")["items"]]:
        message = f"changed tools of MCP servers are held back: {', '.join(names)}"
        yield Finding("mcp", "wrong", message, "toolgraft tools accept")


def _tools(api: "Api") -> Iterator[Finding]:
    names = {"default": None, **dict.fromkeys(session["name"] for session in api.items("/v1/sessions"))}
    checked = set[str]()  # sessions share tools
    for name in names:
        if (found := api.find(f"/v1/sessions/{name}/tools")) is None:
            continue
        tools = list(found["tools"] or [])
        if found["shared"]:
            tools.append({"functionDeclarations": found["shared"]})
        checked.update(
            json.dumps(one, sort_keys=True) for tool in tools for one in tool.get("functionDeclarations", ())
        )
        if refusal := refusal_of(tools):
            fix = f"toolgraft tools show --session {name}; change the tool, and set it again"
            yield Finding("tools", "wrong", f"session {name}: Gemini would refuse its tools: {refusal}", fix)
    if not checked:
        yield Finding("tools", "note", "no session has tools", "toolgraft tools set FILE, or graft_tools=FILE.py")
    else:
        were = "was" if len(checked) == 1 else "were"
        yield Finding("tools", "ok", f"{output.count_of(len(checked), 'tool')} {were} checked against Gemini's rules")


def refusal_of(tools: list[dict[str, Any]]) -> str:
    """Why Gemini would refuse these tools, by the rules of the strict local Gemini; "" if it would accept them."""
    from addon.core.tools.tool_rules import RULES
    from addon.fake_gemini import fields, routes, rules
    from addon.fake_gemini.errors import Refused

    plain = [
        {
            **tool,
            "functionDeclarations": [
                {key: value for key, value in one.items() if key not in RULES} for one in tool["functionDeclarations"]
            ],
        }
        if "functionDeclarations" in tool
        else tool
        for tool in tools
    ]
    model = routes.find_model("gemini-3-flash-preview")
    assert model is not None
    try:
        read = fields.read({"tools": plain}, "GenerateContentRequest", _PLACE)
        rules.check_tools(read, model, _PLACE)
    except Refused as refused:
        return " ".join(refused.message.split())
    return ""


def ports_of(addresses: dict[str, Any], control: str) -> list[int]:
    """The ports of a running proxy. `addresses`: the contents of its `proxy.json`."""
    urls = [*addresses.get("regular", ()), *addresses.get("reverse", ()), control]
    return [port for url in urls if (port := urlsplit(url).port)]
