"""Runs a command that may take so many seconds and no more: `bounded.py SECONDS COMMAND...`.

When the time is up it is interrupted, so that it can say where it was, and what it has started is ended with it. Exit
status 124 then, else the command's own. Standard library only; for systems without `timeout`.
"""

import contextlib
import os
import signal
import subprocess
import sys

GRACE = 20
"""Seconds to clean up in after an interrupt."""


def main(seconds: float, command: list[str]) -> int:
    # What a shell starts in the background ignores SIGINT, and so would all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, start_new_session=True)
    try:
        status = process.wait(seconds)
        return status if status >= 0 else 128 - status
    except subprocess.TimeoutExpired:
        print(f"not over after {seconds:g} s: {' '.join(command)}", file=sys.stderr)
        return 124
    except KeyboardInterrupt:
        return 130
    finally:
        for sign in (signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
