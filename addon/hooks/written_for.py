"""Which code of mitmproxy's a replacement was written for."""

import hashlib
import inspect
from collections.abc import Callable
from typing import Any


def source_hash(*functions: Callable[..., Any]) -> str:
    """Of the source of these functions; "" where there is none, as in programs that bring their own Python."""
    try:
        source = "".join(map(inspect.getsource, functions))
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source.encode()).hexdigest()[:16]
