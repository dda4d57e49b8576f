"""Kill the proxy and its workers at random moments, and compare the result with the promises:
`python -m tests.crash --kills 200 --seed 1`."""

import argparse
import secrets
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.crash.cycles import run
from tests.crash.rig import KINDS, Rig


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="how often the proxy is killed (default 200)")
    parser.add_argument("--seed", type=int, default=None, help="of the random moments; default: another one each time")
    parser.add_argument(
        "--power", action="store_true", help="each kill is a power failure: the disk has what was flushed"
    )
    parser.add_argument(
        "--store",
        choices=["sqlite", "redis"],
        default="sqlite",
        help="redis: its server is killed half of the time",
    )
    parser.add_argument("--quiet", action="store_true", help="print findings and the tables alone")
    given = parser.parse_args()
    if given.power and given.store == "redis":
        parser.error("--power cuts the log of SQLite: use --store sqlite")
    seed = secrets.randbelow(1 << 32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rig = run(Path(folder), seed, given.kills, cuts_power=given.power, store=given.store, say=not given.quiet)
    print(report(rig))
    return bool(rig.findings)


def report(rig: Rig) -> str:
    """The outcomes, by actor, and for each promise how often it was broken."""
    lines = ["", f"{'what happened':52} times"]
    lines += [f"{f'{who}: {what}':52} {count:5}" for (who, what), count in sorted(rig.outcomes.items())]
    found = Counter(finding.kind for finding in rig.findings)
    lines += ["", f"{'promise broken':52} times"]
    lines += [f"{words:52} {found[kind]:5}" for kind, words in KINDS.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
