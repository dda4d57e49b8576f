"""A tool with another result for each call."""

import itertools

_numbers = itertools.count(1)


def ticket() -> dict[str, str]:
    """Draw a number."""
    return {"number": f"no-{next(_numbers)}"}
