"""Error messages about MCP servers, for the model and the log. Unlike the SDK's messages, they contain at most the
origin of a URL, and no data that was sent or received."""

import re
from pathlib import Path

import httpx2
from mcp import MCPError
from pydantic import ValidationError

from addon.tools.base import ToolError

MAX_CHARACTERS = 500
_URL = re.compile(r"(https?://)(?:[^\s/?#'\"]*@)?([^\s/?#'\"]*)[^\s'\"]*")
_NO_ANSWER = "its answer is not an MCP message"
_REPLACEMENTS = (
    ("Redirect to ", "it redirects to another URL, which is not followed: check its configured url"),
    ("Failed to parse ", _NO_ANSWER),
    ("Error parsing ", _NO_ANSWER),
    ("Unexpected content type", _NO_ANSWER),
    ("Invalid structured content returned by tool", "its result does not fit the tool's outputSchema"),
    ("Invalid schema for tool", "the tool's outputSchema cannot be used"),
)
"""Beginnings of SDK messages that quote data, and their replacements."""


def describe_failure(error: BaseException) -> str:
    """Why a server cannot be used or did not answer a call."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case MCPError():
            return clean(error.message)
        case ValidationError():
            return _NO_ANSWER
        case httpx2.ConnectError():
            return clean(str(error)) or "the connection failed"
        case httpx2.TransportError():
            return "the connection broke"
        case TimeoutError():
            return "it did not answer in time"
        case OSError():
            message = error.strerror or type(error).__name__
            return f"{message}: {Path(error.filename).name}" if isinstance(error.filename, str) else message
        case RuntimeError() | ValueError() | ToolError():
            return clean(str(error)) or type(error).__name__
        case _:
            return type(error).__name__


def says_only_that_it_failed(message: str) -> bool:
    """Whether this is the SDK's message for an HTTP error status without details."""
    return message in ("Server returned an error response", "Not Found")


def clean(message: str) -> str:
    """A message of the SDK or a server on one line, without URLs' paths and quoted data."""
    for beginning, instead in _REPLACEMENTS:
        if message.startswith(beginning):
            return instead
    message = " ".join(_URL.sub(r"\1\2", message).split()).encode("utf-8", "replace").decode()
    return message if len(message) <= MAX_CHARACTERS else f"{message[: MAX_CHARACTERS - 1]}…"
