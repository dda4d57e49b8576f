"""Which code of mitmproxy's a replacement was written for."""

import hashlib
import inspect
from pkgutil import resolve_name


def source_hash(*names: str) -> str:
    """Of the source of these functions, each as `module:name`. "" where there is none of that name, or no source, as in
    programs that bring their own Python."""
    try:
        source = "".join(inspect.getsource(resolve_name(name)) for name in names)
    except (AttributeError, ImportError, OSError, TypeError):
        return ""
    return hashlib.sha256(source.encode()).hexdigest()[:16]
