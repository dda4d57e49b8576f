"""The command `toolgraft`, and `python -m addon`."""

import sys
from collections.abc import Sequence

from addon.cli.serve import serve

_HELP = ("-h", "--help")

REMOVED_COMMANDS = {
    "completion": "use `toolgraft --install-completion`, or `--show-completion` for the script",
    "store trust-clock": "records expire again a day after the clock jumped",
    "store move": "records cannot be moved to another store. Start with an empty one in graft_store; its tools and"
    " sessions come from toolgraft.toml. To copy a store, use `toolgraft backup`, or Redis's own backup",
    "--workers": "run several proxies on one Redis, each with its own state folder and ports (docs/scale.md)",
}
"""Replacements for removed flags of `serve` (`--FLAG`) and commands (`WORD WORD`)."""


def _check(words: Sequence[str]) -> None:
    """Ends the start if the arguments contain a removed command or flag of `serve`."""
    names = [" ".join(words[:count]) for count in (1, 2)]
    if words[:1] == ["serve"]:
        names += [word.partition("=")[0] for word in words[1:] if word.startswith("--")]
    for name in names:
        if name in REMOVED_COMMANDS:
            sys.exit(f"toolgraft: {name} was removed: {REMOVED_COMMANDS[name]}")


def main() -> None:
    _check(sys.argv[1:])
    # Without the command line's libraries, the proxy starts sooner. All further arguments are mitmproxy's.
    if sys.argv[1:2] == ["serve"] and not set(_HELP) & set(sys.argv[2:3]):
        serve(sys.argv[2:])
    from addon.cli.app import main as run_command

    run_command()


if __name__ == "__main__":
    main()
