"""What a file holds is safe from a power failure once the disk was asked to take it."""

import fcntl
import os


def flush(file: int) -> None:
    """Have the disk take what was written to the file. Raises OSError."""
    if full := getattr(fcntl, "F_FULLFSYNC", None):  # macOS: an fsync leaves it in the disk's own memory
        fcntl.fcntl(file, full)
    else:
        os.fdatasync(file)
