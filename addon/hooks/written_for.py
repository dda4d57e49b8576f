"""Which code of mitmproxy's a replacement was written for."""

import hashlib
import inspect
from functools import cache
from pkgutil import resolve_name
from typing import Any


def source_hash(*names: str) -> str:
    """Of the source of these functions, each as `module:name`. "" where there is none of that name, or no source, as in
    programs that bring their own Python."""
    try:
        return _hash(*(resolve_name(name) for name in names))
    except (AttributeError, ImportError, OSError, TypeError):
        return ""


@cache
def _hash(*functions: Any) -> str:
    return hashlib.sha256("".join(map(inspect.getsource, functions)).encode()).hexdigest()[:16]
