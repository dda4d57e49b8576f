"""`truncation: auto`: leaves out the oldest turns of a history that is too long for the model. Pure."""

import re
from collections.abc import Sequence

from addon.core.framing.documents import Document, encode
from addon.core.history.calls import has_user_content, responses_in

_TOO_LONG = re.compile(r"token count\D{0,20}(\d+)\D{1,60}maximum number of tokens\D{0,40}(\d+)", re.IGNORECASE)
_MARGIN = 0.9
"""Tokens are not spread evenly over the bytes."""


def too_long(message: str) -> float | None:
    """The part of the tokens that fit, if a message of Gemini's says that there are too many."""
    if (found := _TOO_LONG.search(message)) is None:
        return None
    given, most = int(found[1]), int(found[2])
    return most / given if given > most else None


def shortened(contents: Sequence[Document], part: float) -> list[Document] | None:
    """The last turns, of which at most this part of the bytes is left, or those after the last message of the user if
    they are longer. None if nothing can be left out: a history begins with a message of the user."""
    starts = [at for at, content in enumerate(contents) if at and _is_message(content)]
    sizes = [len(encode(content)) for content in contents]
    most = sum(sizes) * part * _MARGIN
    fitting = next((at for at in starts if sum(sizes[at:]) <= most), starts[-1] if starts else None)
    return None if fitting is None else list(contents[fitting:])


def _is_message(content: Document) -> bool:
    """Whether this is the user's own, without results of calls, which need their calls before them."""
    return content.get("role") != "model" and has_user_content([content]) and not responses_in([content])
