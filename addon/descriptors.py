"""Raises the limit of open files: without descriptors, no connection can be accepted or made."""

_TARGET = 65_536


def raise_descriptor_limit() -> int:
    """Raise the soft limit of descriptors as far as possible. Returns the number available."""
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


def control_connections(most: int, descriptors: int) -> int:
    """The most connections for the control API: `graft_max_connections`, or an eighth of few descriptors."""
    return min(most, max(descriptors // 8, 4))
