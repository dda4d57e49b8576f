"""Tools that run on another machine than the proxy, or as another user, in a worker.

    ./run_proxy.sh worker examples/worker.py

The file is an ordinary tool file. The worker registers its functions with a session, takes their calls from
the control API, and sends the results.
"""

import os
import platform
from collections import Counter
from typing import Annotated

from pydantic import Field


def get_machine() -> dict[str, str | int | None]:
    """Describe the machine that the worker runs on: its name, its system and its number of processors."""
    return {"name": platform.node(), "system": platform.system(), "processors": os.cpu_count()}


def count_words(text: str, most_common: Annotated[int, Field(ge=0, le=20)] = 3) -> dict[str, int | dict[str, int]]:
    """Count the words of a text.

    :param text: Any text.
    :param most_common: How many of the most frequent words to list.
    """
    words = text.lower().split()
    return {"words": len(words), "most_common": dict(Counter(words).most_common(most_common))}
