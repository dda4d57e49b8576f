"""Cycles of kills: the actors play, a process is killed at a random moment, and everything is checked when the proxy is
back."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Literal

from tests.crash import runs
from tests.crash.actors import Actor, Asker, listed
from tests.crash.chats import Approver, ByHand, Door, Looped
from tests.crash.dialects import Completions, Interactions
from tests.crash.live import LiveChat
from tests.crash.rig import WORKER_SESSION, Rig, Store, together
from tests.crash.writer import Writer

REPEATABLE = {"repeatable", "remote_repeatable"}
_MOMENTS = 160
"""The most trace points before a kill, which comes at most _PAUSE seconds later."""
_PAUSE = 0.05
_CUT = "Input data was truncated"
"""The upstream's error for a request that was cut when its sender was killed."""
_PLAY = 5.0  # seconds after which the kill comes in any case
_FATES = {"kill": "killed", "end": "told to end"}
_SETTLE = 10.0  # seconds in which the calls of loops that are gone are settled


class Cast:
    """Everyone who uses the proxy."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        approved = Looped(rig, "approval", ["approved"], "sse")
        self.by_hand: list[Asker] = [ByHand(rig, "by hand, json", "json"), ByHand(rig, "by hand, sse", "sse")]
        self.askers: list[Asker] = [
            *self.by_hand,
            approved,
            Door(rig, "/v1/responses", ["plain", "coroutine"], "/v1/responses"),
            Door(rig, "/v1/responses, sse", ["coroutine"], "/v1/responses", stream=True),
            Door(rig, "/v1/gemini", ["coroutine", "stdio"], "/v1/gemini"),
            Door(rig, "/v1/gemini, sse", ["plain"], "/v1/gemini", stream=True),
        ]
        if not rig.cuts_power:
            self.askers += self._looped()
        self.actors: list[Actor] = [*self.askers, Writer(rig)]
        self.approvers = [Approver(rig, approved.session), Approver(rig, WORKER_SESSION)]

    def _looped(self) -> list[Asker]:
        rig = self.rig
        posted = Looped(rig, "endpoint", ["posted"], "json")
        declaration = {
            "name": "posted",
            "parameters": {"type": "OBJECT", "properties": {"mark": {"type": "STRING"}, "seconds": {"type": "NUMBER"}}},
            "executor": {"type": "http", "url": rig.endpoint_url},
        }
        rig.proxy.control.session(posted.session).tools([declaration])
        return [
            posted,
            Looped(rig, "function", ["plain"], "json"),
            Looped(rig, "coroutine", ["coroutine"], "sse"),
            Looped(rig, "MCP over stdio", ["stdio"], "array"),
            Looped(rig, "idempotent", ["repeatable", "plain"], "sse"),
            Looped(rig, "mixed", ["plain", "coroutine", "stdio"], "sse"),
            Looped(rig, "worker, json", ["remote"], "json", WORKER_SESSION),
            Looped(rig, "worker, sse", ["remote", "plain"], "sse", WORKER_SESSION),
            Looped(rig, "worker, idempotent", ["remote_repeatable"], "sse", WORKER_SESSION),
            Looped(rig, "worker, approval", ["remote_approved"], "json", WORKER_SESSION),
            Completions(rig, "chat completions", ["coroutine", "plain"]),
            Interactions(rig, "Interactions", ["plain", "coroutine"]),
            LiveChat(rig, "Live", ["coroutine", "plain", "stdio"]),
        ]


def cycle(rig: Rig, cast: Cast) -> int:
    """Play, kill, start again, and compare. Returns how often the proxy was killed."""
    before = len(runs.read(rig.runs_file))
    kills_worker = not rig.cuts_power and rig.random.random() < 1 / 3
    kills_proxy = not kills_worker or rig.random.random() < 3 / 4
    kills_again = kills_proxy and rig.random.random() < 1 / 4
    tells_first = not kills_worker and rig.random.random() < 1 / 6
    if tells_first:
        _kill_while(rig, cast, "end")
        rig.start_proxy()
    _kill_while(rig, cast, "kill" if kills_proxy else "spare", kills_worker=kills_worker, retrying=tells_first)
    if kills_proxy:
        rig.start_proxy()
    if kills_again:
        _kill_while(rig, cast, "kill", retrying=True)
        rig.start_proxy()
    together(*(one.recover for one in cast.approvers))
    with _approving(cast):
        together(rig.add_workers, *(actor.recover for actor in cast.actors))
    _check_settled(rig, cast)
    if not rig.cuts_power:  # a retry of a loop that the disk lost begins a new one
        _check_runs(rig, cast.askers, runs.read(rig.runs_file), before)
    for error in rig.gemini.errors:
        if _CUT not in error:
            rig.broken("refused", "upstream", error)
    if rig.gemini.dummy_signatures:
        rig.note("upstream", "stand-in signatures")
    rig.gemini.forget()
    return kills_proxy + kills_again


@contextmanager
def _approving(cast: Cast) -> Iterator[None]:
    stop = threading.Event()
    threads = [threading.Thread(target=one.play, args=(stop,), daemon=True) for one in cast.approvers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _kill_while(
    rig: Rig, cast: Cast, fate: Literal["kill", "end", "spare"], *, kills_worker: bool = False, retrying: bool = False
) -> None:
    """Kill the proxy, or tell it to end, while all actors play, or repeat unanswered questions. Returns when all have
    their answers, or have failed."""
    stop = threading.Event()
    jobs: list[Callable[[], None]]
    jobs = [one.insist for one in cast.askers] if retrying else [partial(one.play, stop) for one in cast.actors]
    jobs = [rig.trace.playing(job) for job in jobs]
    moment, pause = rig.random.randrange(_MOMENTS), rig.random.uniform(0, _PAUSE)
    if kills_worker:
        jobs.append(partial(_kill_worker, rig, rig.random.randrange(_MOMENTS), rig.random.uniform(0, _PAUSE)))

    def strike() -> None:
        rig.trace.wait(2 * _MOMENTS if fate == "spare" else moment, _PLAY)
        time.sleep(pause)
        if fate != "spare":
            rig.note("proxy", _FATES[fate] + (", while requests were retried" if retrying else ""))
            (rig.kill_proxy if fate == "kill" else rig.end_proxy)()
        stop.set()

    with _approving(cast):
        together(strike, *jobs)


def _kill_worker(rig: Rig, moment: int, pause: float) -> None:
    rig.trace.wait(moment, _PLAY)
    time.sleep(pause)
    rig.kill_worker()
    rig.note("worker", "killed")


def _check_settled(rig: Rig, cast: Cast) -> None:
    """Check that calls of loops that are gone are settled."""
    sessions = {asker.session: asker in cast.by_hand for asker in cast.askers}
    deadline = time.monotonic() + _SETTLE
    while True:
        left = [
            call
            for session, by_hand in sessions.items()
            for status in (("running",) if by_hand else ("running", "pending"))
            for call in listed(rig.proxy.control, "/v1/calls", session=session, status=status)
        ]
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    for call in left:
        if call["call_id"] not in rig.left_open:
            rig.left_open.add(call["call_id"])
            rig.broken("open", call["name"], f"{call['call_id']} is {call['status']}, approval: {call['approval']}")


def _check_runs(rig: Rig, askers: Sequence[Asker], lines: Sequence[runs.Run], before: int) -> None:
    """Check that no call ran twice, after a denial, or after its request was given up."""
    begun = Counter(line.mark for line in lines if not line.done)
    denied = {mark for asker in askers for mark in asker.denied}
    left = {mark for asker in askers for mark in asker.left}
    new = sorted((line for line in lines[before:] if not line.done), key=attrgetter("mark"))
    for mark, group in groupby(new, key=attrgetter("mark")):
        latest = max(group, key=attrgetter("at"))
        if mark in denied:
            rig.broken("late", latest.tool, f"{mark} was denied, and ran")
        if mark in left and latest.at > rig.started_at:
            rig.broken("late", latest.tool, f"{mark} ran after its request was given up")
        if begun[mark] > 1 and latest.tool not in REPEATABLE:
            rig.broken("twice", latest.tool, f"{mark} ran {begun[mark]} times")


def run(
    folder: Path, seed: int, kills: int, *, cuts_power: bool = False, store: Store = "sqlite", say: bool = False
) -> Rig:
    """Kill the proxy `kills` times. Findings are printed as they occur; `say`: print the progress too."""
    began = time.monotonic()
    with Rig(folder, seed, cuts_power=cuts_power, store=store) as rig:
        cast = Cast(rig)
        done = 0
        while done < kills:
            known = len(rig.findings)
            done += cycle(rig, cast)
            for finding in rig.findings[known:]:
                print(f"  {finding.kind}: {finding.who}: {finding.words}", flush=True)
            if say:
                print(f"{done} of {kills} kills, {time.monotonic() - began:.0f} s", flush=True)
    return rig
