"""The benchmark's tool: it does nothing, so a loop's time is only the proxy's."""


def noop(sent: float) -> dict[str, bool]:
    """Do nothing.

    Args:
        sent: When the call was made.
    """
    return {"ok": True}
