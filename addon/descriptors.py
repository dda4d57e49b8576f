"""How many connections there may be: never more than there are file descriptors for.

A process without descriptors can neither accept a connection nor make one.
"""

from typing import NamedTuple

_ENOUGH = 65_536
_RESERVED = 128  # descriptors for the store, tools, and what Python itself opens


class ConnectionLimits(NamedTuple):
    """Of the descriptors, how many connections the control API's port may have, and how many all of the proxy's ports
    together: each of those has one to the upstream as well."""

    control: int
    proxy: int


def raise_descriptor_limit() -> int:
    """How many descriptors the process may have, once its soft limit is as high as it can be."""
    try:
        import resource
    except ImportError:
        return _ENOUGH
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _ENOUGH if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):
        return soft
    return wanted


def connection_limits(most: int, descriptors: int) -> ConnectionLimits:
    """For `graft_max_connections` of `most`."""
    control = min(most, max(descriptors // 8, 4))
    return ConnectionLimits(control, min(most, max((descriptors - control - _RESERVED) // 2, 4)))
