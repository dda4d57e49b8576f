"""Feeds the proxy wrong bytes, and says what it did that it must never do: an error that nobody foresaw, a call of a
grafted tool shown to a client, a turn that lacks what was answered before it, an answer that its own OpenAPI document
does not know, an event loop held up for more than a tenth of a second."""

import argparse
import asyncio
import contextlib
import gc
import math
import random
import secrets
import sys
import time
from collections.abc import Sequence

from tests.fuzz.doors import Doors
from tests.fuzz.findings import FREEZE, watched
from tests.fuzz.live import Live
from tests.fuzz.loops import Loops
from tests.fuzz.shapes import Failure
from tests.fuzz.targets import Answers, Requests, Target

FED: dict[str, type[Target]] = {"answers": Answers, "requests": Requests, "loops": Loops, "live": Live, "doors": Doors}
TARGETS = (*FED, "control")


def fuzzed(
    name: str, seed: int, seconds: float = 0, tries: int = 0, max_tries: float = math.inf
) -> tuple[int, list[str]]:
    """The number of tries of a target, and the findings: for `seconds` and at most `max_tries`, or for `tries` in any
    time."""
    if name == "control":
        from tests.fuzz.control import fuzzed_control

        return fuzzed_control(seed, seconds, tries)
    return asyncio.run(_fed(FED[name](), seed, seconds, tries, max_tries))


async def _fed(target: Target, seed: int, seconds: float, tries: int, max_tries: float) -> tuple[int, list[str]]:
    await target.open()
    done, findings = 0, list[str]()
    ends = time.monotonic() + seconds
    with watched() as errors:
        while len(findings) < 20 and (done < tries if tries else done < max_tries and time.monotonic() < ends):
            rng, begun = random.Random(f"{seed} {done}"), time.thread_time()
            done += 1
            data = b""
            try:
                data = await target.run(rng)
            except Failure as failure:
                findings.append(f"try {done - 1}: {failure}")
            except Exception as error:
                findings.append(f"try {done - 1}: raised {type(error).__name__}: {error}")
            took = time.thread_time() - begun
            if not tries and took > FREEZE and (took := await _time_again(target, f"{seed} {done - 1}")) > FREEZE:
                findings.append(f"try {done - 1}: took {took:.2f} s for {len(data)} bytes")
            findings += [f"try {done - 1}: {text}" for text in errors.taken()]
            if done % 1000 == 0:
                await target.forget()
    await target.close()
    return done, findings


async def _time_again(target: Target, seed: str) -> float:
    """The seconds that a try takes without garbage collection."""
    gc.collect()
    begun = time.thread_time()
    with contextlib.suppress(Exception):  # reported the first time
        await target.run(random.Random(seed))
    return time.thread_time() - begun


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=TARGETS, help="what is fed (all)")
    parser.add_argument("--seconds", type=float, default=60, help="for each (60)")
    parser.add_argument("--max-tries", type=float, default=math.inf, help="for each, even if there is time left (any)")
    parser.add_argument("--seed", type=int, default=None, help="another one each time")
    given = parser.parse_args(argv)
    seed = secrets.randbelow(1 << 32) if given.seed is None else given.seed
    failed = False
    for name in given.targets:
        done, findings = fuzzed(name, seed, given.seconds, max_tries=given.max_tries)
        print(f"{name}: {done} tries with seed {seed}, {len(findings)} findings", flush=True)
        for finding in findings:
            print(f"  {finding}")
        failed = failed or bool(findings)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
