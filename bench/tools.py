"""The tool of the bench: it does nothing, so all that a loop takes is the proxy's."""


def noop(sent: float) -> dict[str, bool]:
    """Do nothing.

    Args:
        sent: When the call was made.
    """
    return {"ok": True}
