"""Reads and checks the `mcpServers` file, in the form that other MCP clients use, or as a table of a TOML file. Starts
nothing.

Besides the usual fields, a server may have `prefix`, `tools` (a selection), `timeout` and `rules` (how calls run).
`${NAME}` and `${NAME:-default}` stand for environment variables in `command`, `args`, `env`, `cwd`, `url` and
`headers`. Variables that are not named there never reach a server.
"""

import dataclasses
import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from addon.tools.base import MAX_NAME, RunRules, SourceError
from addon.tools.http_endpoint import Headers, HttpUrl

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_EXPANDED = ("command", "args", "env", "cwd", "url", "httpUrl", "headers")
_MAX_ERRORS = 5

NamePrefix = Annotated[str, StringConstraints(pattern=r"^([A-Za-z_][A-Za-z0-9_.:-]*)?$", max_length=MAX_NAME - 1)]


class Selection(BaseModel):
    """The tools of a server to use, by the server's own names. `include` None: all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    include: list[str] | None = None
    exclude: list[str] = Field(default_factory=list)


class Server(BaseModel):
    """One server: `command` (stdio) or `url` (streamable HTTP). `timeout`: seconds for each call."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    type: Literal["stdio", "http", "streamable-http", "streamableHttp"] | None = None
    command: str | None = Field(default=None, min_length=1)
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    url: HttpUrl | None = Field(default=None, validation_alias=AliasChoices("url", "httpUrl"))
    headers: Headers = Field(default_factory=dict)
    prefix: NamePrefix = ""
    tools: Selection = Selection()
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    rules: dict[str, RunRules] = Field(default_factory=dict)
    description: str = ""
    disabled: bool = False
    _approvals: frozenset[str] = PrivateAttr(frozenset())

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("tools"), list):
            return value | {"tools": {"include": value["tools"]}}
        return value

    @model_validator(mode="wrap")
    @classmethod
    def _note_approval(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        server = handler(value)
        rules = value.get("rules") if isinstance(value, dict) else None
        if isinstance(rules, dict):
            names = (name for name, given in rules.items() if isinstance(given, dict) and "approval" in given)
            server._approvals = frozenset(names)
        return server

    @property
    def approvals(self) -> frozenset[str]:
        """The tools for which the configuration sets `approval`, true or false."""
        return self._approvals

    @model_validator(mode="after")
    def _one_transport(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("it must have either command (stdio) or url (streamable HTTP)")
        transport, others = (
            ("command", ("url", "headers")) if self.command else ("url", ("command", "args", "env", "cwd"))
        )
        for name in others:
            if getattr(self, name):
                raise ValueError(f"{name} does not go with {transport}")
        if self.type and (self.type == "stdio") != (transport == "command"):
            raise ValueError(f"type {self.type!r} does not go with {transport}")
        return self


class _File(BaseModel):
    """Keys besides `mcpServers` belong to other clients and are ignored."""

    mcp_servers: dict[str, Server] = Field(alias="mcpServers")


def read_servers(path: str | Path, environment: Mapping[str, str] = os.environ) -> dict[str, Server]:
    """The enabled servers of a JSON or TOML file, by name. Raises SourceError with the file and the field."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        is_toml = str(path).endswith(".toml")
        document = tomllib.loads(text) if is_toml else json.loads(text, object_pairs_hook=_without_duplicates)
        return check_servers(document, path, environment)
    except SourceError:
        raise
    except OSError as e:
        raise SourceError(f"{path}: {e.strerror or e}") from e
    except json.JSONDecodeError as e:
        raise SourceError(f"{path}: not JSON: {e}") from e
    except tomllib.TOMLDecodeError as e:
        raise SourceError(f"{path}: not TOML: {e}") from e
    except ValueError as e:
        raise SourceError(f"{path}: {e}") from e
    except RecursionError:
        raise SourceError(f"{path}: it is nested too deeply") from None


def check_servers(document: Any, path: str | Path, environment: Mapping[str, str] = os.environ) -> dict[str, Server]:
    """The enabled servers of a file's document, by name. Raises SourceError."""
    try:
        found = _File.model_validate(_expanded(document, environment))
    except ValidationError as e:
        errors = e.errors(include_url=False, include_input=False)
        problems = [f"{_field(error['loc'])}: {_message(error)}" for error in errors[:_MAX_ERRORS]]
        raise SourceError(f"{path}: {'; '.join(problems)}") from None
    except _Unset as e:
        raise SourceError(f"{path}: {e}") from None
    return {name: server for name, server in found.mcp_servers.items() if not server.disabled}


class _Unset(Exception):
    """An environment variable that is not set."""

    def __init__(self, place: tuple[str | int, ...], name: str) -> None:
        field = ".".join(map(str, place))
        super().__init__(f"{field}: the environment variable {name} is not set; set it, or write ${{{name}:-default}}")


def _expanded(document: Any, environment: Mapping[str, str]) -> Any:
    servers = document.get("mcpServers") if isinstance(document, dict) else None
    if not isinstance(servers, dict):
        return document

    def expand(value: Any, place: tuple[str | int, ...]) -> Any:
        if isinstance(value, str):
            return _VARIABLE.sub(lambda found: replace(found, place), value)
        if isinstance(value, list):
            return [expand(item, (*place, index)) for index, item in enumerate(value)]
        if isinstance(value, dict):
            return {key: expand(item, (*place, key)) for key, item in value.items()}
        return value

    def replace(found: re.Match[str], place: tuple[str | int, ...]) -> str:
        name, default = found.groups()
        if (value := environment.get(name) or default) is None:
            raise _Unset(place, name)
        return value

    return document | {
        "mcpServers": {
            name: {
                key: expand(value, ("mcpServers", name, key)) if key in _EXPANDED else value
                for key, value in server.items()
            }
            if isinstance(server, dict) and server.get("disabled") is not True
            else server
            for name, server in servers.items()
        }
    }


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {duplicate!r} is given twice in one object")
    return result


def _field(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) or "the document"


def _message(error: ErrorDetails) -> str:
    kind = error["type"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"is unknown; known fields: {', '.join(_known_fields(error['loc'][:-1]))}"
    if kind in ("model_type", "dict_type", "dataclass_type"):
        return "must be an object"
    if kind == "missing":
        return "is missing"
    if kind == "string_pattern_mismatch":
        return "must be letters, digits and the characters _ . : -, with a letter or _ first"
    return error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")


def _known_fields(place: tuple[int | str, ...]) -> list[str]:
    """The fields of the object at this place: a server, its `tools`, or a tool's rules."""
    if place[2:3] == ("rules",):
        return [field.name for field in dataclasses.fields(RunRules)]
    return list(Selection.model_fields if place[2:3] == ("tools",) else Server.model_fields)
