"""Moving all records of a store to another one, which no proxy uses meanwhile either.

The other store takes over the secret, so that digests and keys still match, and keeps a note of how far the move has
come: a move that was interrupted goes on from there. Restoring a record once more changes nothing.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pydantic_core

from store.base import Store, StoreError, UnknownResponse
from store.exports import HOUR, KINDS, Exported, Kind, Moved, MovedNote, MovedResponse, MovedTurn
from store.factory import open_url
from store.models import CachedTools, Session

type Progress = Callable[[Kind, int], None]

_EVER = float("-inf")
_HEAD = 6
"""The bytes that keys of one turn have in common: they are noted together."""


class MoveRefused(StoreError):
    """The move cannot begin, or go on; the message says why."""


@dataclass
class State:
    """How far a move has come. `since`: older records are expired. `bad`: by kind, those that could not be moved."""

    source: str
    since: float
    kind: int = 0
    after: str | None = None
    bad: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Sum:
    """The number of records of a kind, and a digest that does not depend on their order."""

    count: int
    digest: str


class MoveReport(NamedTuple):
    """What was moved: for each kind, what both stores have; and the names of the records that could not be moved."""

    source: dict[Kind, Sum]
    target: dict[Kind, Sum]
    bad: dict[str, list[str]]

    @property
    def wrong(self) -> list[str]:
        """What differs."""
        return [
            f"{kind} differ: {one.count} in the first store (digest {one.digest}), {other.count} in the second"
            f" (digest {other.digest})"
            for kind, one in self.source.items()
            if (other := self.target[kind]) != one
        ]


class Clock:
    """The wall clock; while a record is restored, the time at which it was written."""

    def __init__(self) -> None:
        self.at: float | None = None

    def __call__(self) -> float:
        return time.time() if self.at is None else self.at


async def move(
    source_url: str, target_url: str, *, ttl: float, progress: Progress = lambda kind, count: None
) -> MoveReport:
    """Move everything that has not expired. Raises StoreError."""
    source_name, target_name = _name(source_url), _name(target_url)
    if source_name == target_name:
        raise MoveRefused(f"{source_name} is both: name another store to move to")
    _check_file(source_name)
    clock = Clock()
    try:
        source, target = open_url(source_url, ttl=ttl), open_url(target_url, ttl=ttl, clock=clock)
    except ValueError as error:
        raise MoveRefused(f"a store's URL cannot be used: {error}") from None
    await source.open()
    try:
        await _check_unused(source, source_name)
        if await source.move_note():
            raise MoveRefused(f"{source_name}: a move to it was not finished")
        await target.open()
        await _check_unused(target, target_name)
        if (source.secret, source.epoch) == (target.secret, target.epoch):
            raise MoveRefused(f"{source_name} and {target_name} are the same store")
        since = _EVER if source.clock_doubt else time.time() - ttl
        state = await _begin(source, source_name, target, target_name, since=since)
        await target.close()
        await target.open()  # with its new secret
        moved = await copy(source, target, clock, state, progress)
        await _check_unused(source, source_name)
        if moved.wrong:
            state.kind = 0  # the next try copies all of it once more
            await _note(target, state)
        else:
            await target.note_move("")
        return moved
    finally:
        await target.close()
        await source.close()


def _name(url: str) -> str:
    """A store's URL without a password. Raises MoveRefused."""
    parts = urlsplit(url)
    if parts.scheme == "memory":
        raise MoveRefused("a store in memory has no records that another process could move")
    if parts.scheme == "sqlite":
        return f"sqlite:///{Path(url.removeprefix('sqlite:///')).expanduser().resolve()}"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], path=parts.path.rstrip("/") or "/0").geturl()


def _check_file(name: str) -> None:
    """Opening a missing file would create it. Raises MoveRefused."""
    if name.startswith("sqlite:") and not Path(name.removeprefix("sqlite:///")).exists():
        raise MoveRefused(f"{name}: there is no such file")


async def _check_unused(store: Store, name: str) -> None:
    if users := await store.users():
        raise MoveRefused(f"{name} is in use by {len(users)} running proxies: stop them, and wait for some seconds")


async def _begin(source: Store, source_name: str, target: Store, target_name: str, *, since: float) -> State:
    if note := await target.move_note():
        state = State(**json.loads(note))
        if state.source != source_name or target.secret != source.secret:
            raise MoveRefused(
                f"{target_name} has an unfinished move from {state.source}: go on with that, or name another"
            )
        return state
    for kind in KINDS:
        if any((await target.export(kind, since=_EVER))[:2]):
            raise MoveRefused(f"{target_name} is not empty: it has {kind} already")
    state = State(source_name, since)
    await target.begin_move(source.secret)
    await _note(target, state)
    return state


async def _note(target: Store, state: State) -> None:
    await target.note_move(json.dumps(asdict(state)))


async def copy(source: Store, target: Store, clock: Clock, state: State, progress: Progress) -> MoveReport:
    """Copy what `state` says is left, and compare. `clock` is the target's."""
    offset = target.steady() - source.steady()
    while state.kind < len(KINDS):
        kind = KINDS[state.kind]
        page = await source.export(kind, since=state.since, after=state.after)
        bad = state.bad.setdefault(kind, [])
        bad += [name for name in page.bad if name not in bad]
        try:
            bad += await _restore_all(target, clock, page.items, offset)
        finally:
            clock.at = None
        progress(kind, len(page.items))
        state.after = page.after
        if page.after is None:
            state.kind += 1
        await _note(target, state)
    await target.sync()
    source_sums = {kind: await _sum(source, kind, state) for kind in KINDS}
    return MoveReport(source_sums, {kind: await _sum(target, kind, state) for kind in KINDS}, state.bad)


async def _restore_all(target: Store, clock: Clock, items: list[Moved], offset: float) -> list[str]:
    """Returns the names of the records that the store did not accept."""
    bad = []
    notes = [item for item in items if isinstance(item, MovedNote)]
    for group in _groups(notes):
        # at the end of its hour, so that none is kept shorter than it was promised
        clock.at = min(group[0].noted + HOUR - 1, time.time())
        await target.save_plain(group[0].session, [note.key for note in group], group[0].chain)
    for item in items:
        if not isinstance(item, MovedNote):
            try:
                await _restore(target, clock, item, offset)
            except (ValueError, UnknownResponse):
                bad.append(_name_of(item))
    return bad


def _groups(notes: list[MovedNote]) -> list[list[MovedNote]]:
    """Notes that can be written together: only the first of a group has a chain."""

    def common(note: MovedNote) -> tuple[str, float, bytes]:
        return note.session, note.noted, note.key[:_HEAD]

    groups: list[list[MovedNote]] = []
    for note in sorted(notes, key=lambda note: (common(note), not note.chain, len(note.key), note.key)):
        if note.chain or not groups or common(groups[-1][0]) != common(note):
            groups.append([note])
        else:
            groups[-1].append(note)
    return groups


async def _restore(target: Store, clock: Clock, item: Moved, offset: float) -> None:
    match item:
        case Session():
            await target.restore_session(item)
        case CachedTools():
            clock.at = item.created_at
            await target.put_cached_tools(item)
        case MovedTurn(turn, calls, keys):
            clock.at = turn.created_at
            if turn.broke_off is not None:
                turn = turn.model_copy(update={"broke_off": turn.broke_off + offset})
            calls = [
                call if call.lease_until is None else call.model_copy(update={"lease_until": call.lease_until + offset})
                for call in calls
            ]
            await target.save_turn(turn, calls, keys)
        case MovedResponse(response):
            clock.at = item.used_at
            await _restore_response(target, item)
            if item.undelivered is not None:  # the proxy that would hand it over is gone: a retry may take it
                clock.at = None
                await target.mark_not_handed_over(response.session, response.response_id)


async def _restore_response(target: Store, item: MovedResponse) -> None:
    response, session, name = item.response, item.response.session, item.response.conversation
    try:
        await target.response(session, response.response_id)
    except UnknownResponse:
        head = None if name is None else await target.conversation(session, name)
        if name is not None and head is not None and head != response.previous:
            await target.restore_head(session, name, None)
            head = None
        await target.add_response(response, head=head, undelivered=item.undelivered)
    if name is not None and item.head != response.response_id:
        try:
            await target.restore_head(session, name, item.head)
        except UnknownResponse:  # it follows, or cannot be read
            await target.restore_head(session, name, None)


async def _sum(store: Store, kind: Kind, state: State) -> Sum:
    bad = set(state.bad.get(kind, ()))
    count = total = 0
    after: str | None = None
    while True:
        page: Exported = await store.export(kind, since=state.since, after=after)
        for item in page.items:
            if _name_of(item) not in bad:
                count += 1
                total += int.from_bytes(hashlib.blake2b(_comparable(item), digest_size=16).digest())
        if (after := page.after) is None:
            return Sum(count, f"{total % (1 << 128):032x}")


def _comparable(item: Moved) -> bytes:
    """What both stores must have of a record. Times of the clock for leases differ."""
    match item:
        case MovedTurn(turn, calls, keys):
            parts = [turn.model_dump_json(exclude={"broke_off"})]
            parts += [call.model_dump_json(exclude={"lease_until"}) for call in calls]
            parts += [pydantic_core.to_json(call.parts).decode() for call in calls if call.parts]
            parts += sorted(key.hex() for key in keys)
        case MovedNote():
            parts = [item.session, item.key.hex(), str(item.noted), item.chain.hex()]
        case MovedResponse(response, head, used_at, undelivered):
            is_head = head == response.response_id
            answer = undelivered and (undelivered.key.hex(), undelivered.proxy_id, undelivered.answer)
            parts = [response.model_dump_json(), f"{is_head} {used_at}", pydantic_core.to_json(answer).decode()]
        case _:
            parts = [item.model_dump_json()]
    return "\0".join(parts).encode()


def _name_of(item: Moved) -> str:
    match item:
        case MovedTurn(turn):
            return turn.turn_id
        case MovedResponse(response):
            return response.response_id
        case MovedNote():
            return item.key.hex()
        case CachedTools():
            return item.cached_content
        case _:
            return item.name
