"""Identifies the mitmproxy source that a replacement was written for."""

import hashlib
import inspect
from functools import cache
from pkgutil import resolve_name
from typing import Any


def source_hash(*names: str) -> str:
    """The hash of the source of these functions (`module:name`). "" if a function or its source is missing, as in
    programs that bundle Python."""
    try:
        return _hash(*(resolve_name(name) for name in names))
    except (AttributeError, ImportError, OSError, TypeError):
        return ""


@cache
def _hash(*functions: Any) -> str:
    return hashlib.sha256("".join(map(inspect.getsource, functions)).encode()).hexdigest()[:16]
