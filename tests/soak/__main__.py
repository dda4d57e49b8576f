"""Uses a proxy in every way that clients do, for some time, and checks whether memory, descriptors or tasks grow with
the number of requests: `python -m tests.soak --seconds 3600`.

The exit status is 1 if one of them grows more than its limit.
"""

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.proxies import Proxy, looping_proxy
from tests.e2e.upstreams import Gemini
from tests.ports import free_port
from tests.soak.slopes import LIMITS, PER, Sample, findings
from tests.soak.traffic import Traffic

VISITS = 40
"""Visits between two samples."""
AT_ONCE = 8
BOUND = 120
"""Seconds in which the visits between two samples must end."""
WARM_UP = 1000
"""Requests before the first sample that counts: until then caches and the allocator's memory grow."""
LEAST = 6
"""The least number of samples, even on a slow machine."""
LOOKS = 5
"""Measurements of one sample, of which the least counts: slow ends, such as that of a tool after its client has left,
may not be over in the first."""


def sampled(proxy: Proxy, requests: int) -> Sample:
    looks = []
    for _ in range(LOOKS):
        time.sleep(0.05)
        page = proxy.control.http.get("/metrics").text
        found = {one.name: one.value for family in text_string_to_metric_families(page) for one in family.samples}
        looks.append((found["process_resident_memory_bytes"], found["process_open_fds"], found["toolgraft_tasks"]))
    return Sample(requests, *map(min, zip(*looks, strict=True)))


def soaked(
    folder: Path,
    seconds: float,
    seed: int,
    *,
    warm_up: int = WARM_UP,
    arguments: tuple[str, ...] = (),
    say: Callable[[str], None] = lambda _: None,
) -> list[Sample]:
    """Samples of a proxy in use for `seconds`, after its first requests. `arguments`: for mitmdump. Raises
    AssertionError for a wrong answer, TimeoutError if none arrives."""
    samples: list[Sample] = []
    with Gemini() as gemini:
        nowhere = f"http://127.0.0.1:{free_port()}"
        proxy = looping_proxy(folder, gemini.url, nowhere, arguments=arguments, upstream=gemini.url)
        try:
            traffic = Traffic(proxy, seed)
            ends = time.monotonic() + seconds
            while time.monotonic() < ends or len(samples) < LEAST:
                asyncio.run(asyncio.wait_for(traffic.visit(VISITS, AT_ONCE), BOUND))
                gemini.forget()
                sample = sampled(proxy, traffic.requests)
                say(line_of(sample))
                if sample.requests >= warm_up:
                    samples.append(sample)
            assert "Traceback" not in proxy.log, proxy.log[-5000:]
        finally:
            proxy.stop()
    return samples


def line_of(one: Sample) -> str:
    return (
        f"{one.requests:8} requests {one.memory / 2**20:8.1f} MiB "
        f"{one.descriptors:6.0f} descriptors {one.tasks:6.0f} tasks"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long (60)")
    parser.add_argument("--seed", type=int, default=None, help="of what is done when; default: another one each time")
    parser.add_argument("--quiet", action="store_true", help="do not print each sample")
    given = parser.parse_args(argv)
    seed = secrets.randbelow(1 << 32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        say = (lambda _: None) if given.quiet else (lambda words: print(words, flush=True))
        samples = soaked(Path(folder), given.seconds, seed, say=say)
    for limit in LIMITS:
        print(f"{limit.of:12} {limit.slope(samples):8.2f} {limit.unit} per {PER} requests (at most {limit.most:g})")
    found = findings(samples)
    for sentence in found:
        print(sentence)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
