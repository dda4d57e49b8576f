"""What every backend must decide alike, as pure functions: upserts, cursors, JSON. No storage, no clock.

What becomes of a call is in `_states`.
"""

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

import pydantic_core

from store.base import BadCursor, CursorLost, UnknownCall, UnknownResponse, VersionChanged
from store.models import Call, Page, Response, Session, Turn


def plain_json(value: Any) -> Any:
    """The value as JSON gives it back: a private copy. Raises ValueError where it is not JSON."""
    return pydantic_core.from_json(pydantic_core.to_json(value), allow_inf_nan=False)


def same_json(one: Any, other: Any) -> bool:
    """Equal as JSON values: 1 is 1.0, and neither is true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return bool(one == other)


def json_text(value: Any) -> str:
    return pydantic_core.to_json(value).decode()


def changed(old: Session | None, name: str, changes: dict[str, Any], *, version: int, now: float) -> Session:
    """The session with these fields changed; a new one where there was none. Raises ValueError for a bad name."""
    if old is None:
        return Session(name=name, version=version, created_at=now, updated_at=now, **changes)
    return old.model_copy(update={**changes, "version": version, "updated_at": now})


def check_version(session: Session | None, name: str, expected: int | None) -> None:
    current = session.version if session else 0
    if expected is not None and current != max(expected, 0):
        raise VersionChanged(name, current, expected)


def replaced(old: Turn | None, new: Turn) -> Turn:
    """`new` as it is to be kept where `old` was."""
    if old is None:
        return new
    kept: dict[str, Any] = {"bound": old.bound, "broke_off": old.broke_off, "created_at": old.created_at}
    if new.proxy_id is None:
        kept["proxy_id"] = old.proxy_id
    changed = {name: value for name, value in kept.items() if getattr(new, name) != value}
    return new.model_copy(update=changed) if changed else new


def broken_off(turn: Turn, *, steady: float) -> Turn | None:
    """The turn, its answer having ended unfinished; None where that says nothing new."""
    if turn.delivered or turn.broke_off is not None:
        return None
    return turn.model_copy(update={"broke_off": steady})


def delivered(turn: Turn) -> Turn | None:
    """The turn, its client having all of it; None where that says nothing new."""
    return None if turn.delivered else turn.model_copy(update={"delivered": True, "progress": None})


def can_be_taken_over(
    turn: Turn, *, proxies: Container[str], seen: Mapping[str, float], window: float, steady: float
) -> bool:
    """As `is_left`, of a turn."""
    return not turn.delivered and is_left(
        turn.broke_off, turn.proxy_id, proxies=proxies, seen=seen, window=window, steady=steady
    )


ANSWERS_KEPT = 3600.0
"""Seconds for which an answer is kept that was not handed over: no retry is waited for longer."""


def is_left(
    broke_off: float | None,
    proxy_id: str | None,
    *,
    proxies: Container[str],
    seen: Mapping[str, float],
    window: float,
    steady: float,
) -> bool:
    """Whether an answer of this proxy that broke off, or may have, is for the request that is sent again. `proxies` are
    those that have a lease; `seen`: when each was last alive."""
    if broke_off is None and proxy_id is not None and proxy_id not in proxies:
        broke_off = seen.get(proxy_id)
    return broke_off is not None and steady - broke_off <= window


def taken_over(turn: Turn, proxy_id: str) -> Turn:
    return turn.model_copy(update={"broke_off": None, "proxy_id": proxy_id})


def check_calls(turn: Turn, calls: Sequence[Call]) -> None:
    for call in calls:
        if (call.session, call.turn_id) != (turn.session, turn.turn_id):
            raise ValueError(f"call {call.call_id} is not of turn {turn.turn_id} in session {turn.session}")


def check_head(response: Response, head: str | None) -> None:
    if head is not None and (response.conversation is None or response.previous != head):
        raise ValueError(f"response {response.response_id} moves no conversation on from {head}")


def taken(response: Response) -> ValueError:
    return ValueError(f"there is a response {response.response_id} in session {response.session} already")


def unknown_call(call_id: str, session: str | None = None) -> UnknownCall:
    return UnknownCall(f"there is no call {call_id}{f' in session {session}' if session is not None else ''}")


def unknown_response(session: str, response_id: str) -> UnknownResponse:
    return UnknownResponse(f"there is no response {response_id} in session {session}")


def check_limit(limit: int) -> None:
    if limit < 1:
        raise ValueError(f"limit is {limit}, and must be at least 1")


def place(kind: str, cursor: str | None) -> int:
    """The place after which the page begins that `cursor` asks for; 0 for the first. Raises BadCursor."""
    if cursor is None:
        return 0
    if not (match := re.fullmatch(rf"{kind}([0-9]{{1,18}})", cursor, re.ASCII)):
        raise BadCursor(f"cursor {cursor!r} is not from a list of {kind}s")
    return int(match[1])


def event_id(epoch: str, number: int) -> str:
    return f"{epoch}-{number}"


def event_after(cursor: str | None, epoch: str, last: int, lost: int) -> int:
    """The number after which the events begin that `cursor` asks for; 0: with the oldest. `last` is the last event's,
    `lost` that of the last one that is not kept any more. Raises CursorLost, BadCursor."""
    if cursor is None:
        return 0
    if not (match := re.fullmatch(r"(?:([0-9a-f]{1,32})-)?([0-9]{1,18})", cursor, re.ASCII)):
        raise BadCursor(f"{cursor!r} is not the id of an event")
    # an id without an epoch is of the time before there were epochs
    if match[1] != epoch or not lost <= int(match[2]) <= last:
        raise CursorLost(cursor)
    return int(match[2])


def name_after(cursor: str | None) -> str:
    """The same for a list by name: the name after which the page begins."""
    if cursor is None:
        return ""
    if not cursor.startswith("session."):
        raise BadCursor(f"cursor {cursor!r} is not from a list of sessions")
    return cursor.removeprefix("session.")


def page_of[T](rows: Sequence[tuple[int | str, T | None]], kind: str, limit: int) -> Page[T]:
    """A page from up to `limit` + 1 rows of (place, record): the one too many says that there is a next page. None is a
    record that cannot be read."""
    items = [record for _, record in rows[:limit] if record is not None]
    more = len(rows) > limit
    return Page.model_construct(items=items, next_cursor=f"{kind}{rows[limit - 1][0]}" if more else None)
