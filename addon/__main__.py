"""The command `toolgraft`, and `python -m addon`."""

import sys

from addon.cli.serve import serve
from addon.options import check_command_line

_HELP = ("-h", "--help")


def main() -> None:
    try:
        check_command_line(sys.argv[1:])
    except ValueError as error:
        sys.exit(f"toolgraft: {error}")
    # Without the command line's libraries, the proxy starts sooner. All further arguments are mitmproxy's.
    if sys.argv[1:2] == ["serve"] and not set(_HELP) & set(sys.argv[2:3]):
        serve(sys.argv[2:])
    from addon.cli.app import main as run_command

    run_command()


if __name__ == "__main__":
    main()
