"""The process that flushes a proxy's files to disk. `flush_process.py` starts it by this file's path.

It imports nothing of the proxy, and has a file open only while it flushes it. It ends when the proxy has ended.
"""

import contextlib
import errno
import fcntl
import os
import signal
import socket

MOST = 253
"""Files in a message: the kernel's limit for descriptors."""


def flush(file: int) -> None:
    """Write the data of the file to the disk. Raises OSError."""
    if full := getattr(fcntl, "F_FULLFSYNC", None):  # macOS: an fsync leaves the data in the disk's cache
        fcntl.fcntl(file, full)
    else:
        os.fdatasync(file)


def serve(proxy: socket.socket) -> None:
    """A message has descriptors, and a byte for each. So has its answer: 0, or the number of the error."""
    while True:
        message, files, _, _ = socket.recv_fds(proxy, MOST, MOST)
        if not message or len(message) != len(files):  # the proxy has ended; or too many files are open
            return
        errors = bytes(map(_error, files))
        for file in files:
            os.close(file)
        proxy.send(errors)


def _error(file: int) -> int:
    try:
        flush(file)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the proxy, which may get it too, flushes until it ends
    with contextlib.suppress(OSError), socket.socket(fileno=0) as proxy:
        serve(proxy)


if __name__ == "__main__":
    main()
