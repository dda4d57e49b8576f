"""What is told of an MCP server's errors, to the model and in the log: never a URL beyond its origin, nor what was sent
or received. The SDK's own words quote both."""

import re
from pathlib import Path

import httpx2
from mcp import MCPError
from pydantic import ValidationError

from addon.tools.base import ToolError

MAX_WORDS = 500
_URL = re.compile(r"(https?://)(?:[^\s/?#'\"]*@)?([^\s/?#'\"]*)[^\s'\"]*")
_NO_ANSWER = "what it answered is no MCP message"
_QUOTING = (
    ("Redirect to ", "it redirects to elsewhere, which is not followed: check the url of its configuration"),
    ("Failed to parse ", _NO_ANSWER),
    ("Error parsing ", _NO_ANSWER),
    ("Unexpected content type", _NO_ANSWER),
    ("Invalid structured content returned by tool", "its result does not fit the tool's outputSchema"),
    ("Invalid schema for tool", "the tool's outputSchema cannot be used"),
)
"""How messages of the SDK's begin that quote something, and what is said in their place."""


def describe_failure(error: BaseException) -> str:
    """Why a server cannot be used, or has not answered a call."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case MCPError():
            return plain(error.message)
        case ValidationError():
            return _NO_ANSWER
        case httpx2.ConnectError():
            return plain(str(error)) or "the connection failed"
        case httpx2.TransportError():
            return "the connection broke"
        case TimeoutError():
            return "it has not answered in time"
        case OSError():
            words = error.strerror or type(error).__name__
            return f"{words}: {Path(error.filename).name}" if isinstance(error.filename, str) else words
        case RuntimeError() | ValueError() | ToolError():
            return plain(str(error)) or type(error).__name__
        case _:
            return type(error).__name__


def says_only_that_it_failed(words: str) -> bool:
    """Whether the SDK has put these words in the place of an HTTP status."""
    return words in ("Server returned an error response", "Not Found")


def plain(message: str) -> str:
    """A message of the SDK's, or of a server's own, on one line."""
    for beginning, instead in _QUOTING:
        if message.startswith(beginning):
            return instead
    words = " ".join(_URL.sub(r"\1\2", message).split()).encode("utf-8", "replace").decode()
    return words if len(words) <= MAX_WORDS else f"{words[: MAX_WORDS - 1]}…"
