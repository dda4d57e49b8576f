"""Makes the contents of a file safe from a power failure."""

import fcntl
import os


def flush(file: int) -> None:
    """Write the data of the file to the disk. Raises OSError."""
    if full := getattr(fcntl, "F_FULLFSYNC", None):  # macOS: an fsync leaves the data in the disk's cache
        fcntl.fcntl(file, full)
    else:
        os.fdatasync(file)
