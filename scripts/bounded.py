"""Runs a command that may take so many seconds and no more: `bounded.py SECONDS COMMAND...`.

When the time is up, or this process gets SIGINT or SIGTERM, it interrupts the command, which can then say where it was,
and ends what the command has started. The exit status is 124 or 130 then, else the command's own. Standard library
only; for systems without `timeout`.
"""

import contextlib
import os
import signal
import subprocess
import sys

GRACE = 20
"""Seconds to clean up in after an interrupt."""
_ENDS = (signal.SIGINT, signal.SIGTERM)


def main(seconds: float, command: list[str]) -> int:
    # A shell's background jobs ignore SIGINT, and the command would inherit that.
    for sign in _ENDS:
        signal.signal(sign, signal.default_int_handler)
    _hold(signal.SIG_BLOCK)
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=lambda: _hold(signal.SIG_UNBLOCK))
    try:
        _hold(signal.SIG_UNBLOCK)
        status = process.wait(seconds)
        return status if status >= 0 else 128 - status
    except subprocess.TimeoutExpired:
        print(f"not over after {seconds:g} s: {' '.join(command)}", file=sys.stderr)
        return 124
    except KeyboardInterrupt:
        return 130
    finally:
        _hold(signal.SIG_BLOCK)
        for sign in (signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)


def _hold(how: int) -> None:
    """Hold signals back, or let them in: none may interrupt the start of the command or the end of its processes."""
    signal.pthread_sigmask(how, _ENDS)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
