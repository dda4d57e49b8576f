"""`truncation: auto`: leaves out the oldest turns of a history that is too long for the model. Pure."""

import re
from collections.abc import Sequence

from addon.core.framing.documents import Document, encode
from addon.core.history.calls import has_user_content, responses_in

_TOO_LONG = re.compile(r"token count\D{0,20}(\d+)\D{1,60}maximum number of tokens\D{0,40}(\d+)", re.IGNORECASE)
_MARGIN = 0.9
"""A margin, because tokens are not spread evenly over the bytes."""


def too_long(message: str) -> float | None:
    """The share of the tokens that fit, if this is Gemini's message about too many tokens."""
    if (found := _TOO_LONG.search(message)) is None:
        return None
    given, most = int(found[1]), int(found[2])
    return most / given if given > most else None


def shortened(contents: Sequence[Document], part: float) -> list[Document] | None:
    """The last turns, with at most this share of the bytes, or from the user's last message on if that is more. None if
    nothing can be left out: a history must begin with a message of the user."""
    starts = [at for at, content in enumerate(contents) if at and _is_message(content)]
    sizes = [len(encode(content)) for content in contents]
    most = sum(sizes) * part * _MARGIN
    fitting = next((at for at in starts if sum(sizes[at:]) <= most), starts[-1] if starts else None)
    return None if fitting is None else list(contents[fitting:])


def _is_message(content: Document) -> bool:
    """Whether this is a user's message without results of calls, which would need their calls before them."""
    return content.get("role") != "model" and has_user_content([content]) and not responses_in([content])
