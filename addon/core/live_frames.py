"""The frames of a Live connection, the resulting actions, and access to members in either spelling."""

import re
from typing import Any, NamedTuple

from addon.core.answer import CapturedCall
from addon.core.framing.documents import Document, Malformed, camel, members, replace_invalid_text
from addon.core.history.steps import CallSlot

BLOCKING, NON_BLOCKING = "BLOCKING", "NON_BLOCKING"
_RELEVANT = re.compile(rb'"(?:tool_?[Cc]all|turn_?[Cc]omplete|function_?[Cc]all)')
_ESCAPES = (b"\\u00", b"\0")
"""The keys for which a service frame must be decoded, and the escapes that may hide them. Most frames are audio."""
_BEHAVIORS = ("UNSPECIFIED", BLOCKING, NON_BLOCKING)


class Frame(NamedTuple):
    """A WebSocket message. `text`: a text frame, not a binary one."""

    data: bytes
    text: bool = True


class ToolBehavior(NamedTuple):
    """Gemini's `behavior` and `scheduling` of a tool; None if not set."""

    behavior: str | None = None
    scheduling: str | None = None


class TooMuchHeld(Exception):
    """The client has sent more than may be held while the model waits for a call."""


class LiveStep(NamedTuple):
    """A toolCall with grafted calls. `parts`: all its calls, under the toolset's names. `slots`: the owner of each
    call. `calls`: the grafted ones. `number`: its index within the model's turn, from 0."""

    parts: tuple[Document, ...]
    slots: tuple[CallSlot, ...]
    calls: tuple[CapturedCall, ...]
    number: int = 0


def is_relevant(data: bytes) -> bool:
    """Whether a service frame may hold a call or the end of a turn."""
    return _RELEVANT.search(data) is not None or any(escape in data for escape in _ESCAPES)


class LiveActions(NamedTuple):
    """The actions to take. `forward`: the data to pass on instead of the fed frame, None for nothing. `send`: frames to
    send upstream after it. `step`: the calls to run. `cancel`: ids of calls that nobody waits for any longer.
    `results`: the client's answers to passed-through calls, by call id."""

    forward: bytes | None = None
    send: tuple[Frame, ...] = ()
    step: LiveStep | None = None
    cancel: tuple[str, ...] = ()
    results: tuple[tuple[str, Document], ...] = ()


def kind_of(frame: Frame) -> tuple[str, Frame]:
    """The name of a client frame's first member ("" if the frame is no object), and the frame with valid text."""
    try:
        return _first(frame.data), frame
    except Malformed:
        good = Frame(replace_invalid_text(frame.data), frame.text)
    try:
        return _first(good.data), good
    except Malformed:
        return "", frame


def _first(data: bytes) -> str:
    return next((member.name for member in members(data)), "")


def id_of(call: Document) -> str | None:
    gemini_id = call.get("id")
    return None if gemini_id is None else str(gemini_id)


def with_behavior(declaration: Document, tool: ToolBehavior) -> Document:
    return declaration if tool.behavior is None else {**declaration, "behavior": tool.behavior}


def behavior_of(value: Any) -> str:
    """The name of a declaration's behavior. Clients may send its number."""
    if isinstance(value, int) and 0 <= value < len(_BEHAVIORS):
        return _BEHAVIORS[value]
    return str(value).upper()


def with_tools(document: Document, tools: list[Document]) -> Document:
    """The document with these tools, or without any."""
    others = {key: value for key, value in document.items() if key != "tools"}
    return {**others, "tools": tools} if tools else others


def key_of(document: Document, name: str) -> str:
    """The key of a member, in the spelling that the document uses."""
    return next((key for key in document if camel(key) == name), name)


def member_of(document: Any, name: str) -> tuple[str, Document]:
    """The key and the value of a member that is an object; {} if there is none."""
    if not isinstance(document, dict):
        return name, {}
    key = key_of(document, name)
    value = document.get(key)
    return key, value if isinstance(value, dict) else {}


def with_value(document: Document, key: str, value: Any) -> Document:
    """The document with another value under a key; without the key if the value is empty."""
    if value:
        return {**document, key: value}
    return {name: member for name, member in document.items() if name != key}
