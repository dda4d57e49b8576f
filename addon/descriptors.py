"""Limits connections to the available file descriptors: without descriptors, no connection can be accepted or made."""

from typing import NamedTuple

_TARGET = 65_536
_RESERVED = 128  # descriptors for the store, tools and Python itself


class ConnectionLimits(NamedTuple):
    """How many connections the control API's port may have, and all ports of the proxy together. A proxy connection
    needs two descriptors, because it has one to the upstream too."""

    control: int
    proxy: int


def raise_descriptor_limit() -> int:
    """Raise the soft limit of descriptors as far as possible. Returns the number of descriptors available."""
    try:
        import resource
    except ImportError:
        return _TARGET
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _TARGET if hard == resource.RLIM_INFINITY else min(hard, _TARGET)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return _TARGET if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (ValueError, OSError):
        return soft
    return target


def connection_limits(max_connections: int, descriptors: int) -> ConnectionLimits:
    """The limits for `graft_max_connections` and this number of descriptors."""
    control = min(max_connections, max(descriptors // 8, 4))
    return ConnectionLimits(control, min(max_connections, max((descriptors - control - _RESERVED) // 2, 4)))
