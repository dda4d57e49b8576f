"""Rules that all backends share, as pure functions: upserts, cursors, JSON. No storage, no clock.

The states of a call are in `_states`.
"""

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

import pydantic_core

from store.backends._records import TurnState
from store.base import BadCursor, CursorLost, StoreUnavailable, UnknownCall, UnknownResponse, VersionChanged
from store.models import Call, Page, Response, Session, Turn


def plain_json(value: Any) -> Any:
    """A private copy of the value, converted to JSON and back. Raises ValueError if it is not JSON."""
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
    """The session with these fields changed, or a new session. Raises ValueError for a bad name."""
    if old is None:
        return Session(name=name, version=version, created_at=now, updated_at=now, **changes)
    return old.model_copy(update={**changes, "version": version, "updated_at": now})


def check_version(session: Session | None, name: str, expected: int | None) -> None:
    current = session.version if session else 0
    if expected is not None and current != max(expected, 0):
        raise VersionChanged(name, current, expected)


def replaced(old: Turn | TurnState | None, new: Turn) -> Turn:
    """`new`, with the fields of `old` that outlive a replacement."""
    if old is None:
        return new
    preserved: dict[str, Any] = {"broke_off": old.broke_off, "created_at": old.created_at}
    if new.proxy_id is None:
        preserved["proxy_id"] = old.proxy_id
    changed = {name: value for name, value in preserved.items() if getattr(new, name) != value}
    return new.model_copy(update=changed) if changed else new


def broken_off(turn: Turn, proxy_id: str | None, *, steady: float) -> Turn | None:
    """The turn after its answer ended unfinished; None if nothing changes. `proxy_id`: only if this proxy has it."""
    if turn.delivered or turn.broke_off is not None or proxy_id not in (None, turn.proxy_id):
        return None
    return turn.model_copy(update={"broke_off": steady})


def delivered(turn: Turn) -> Turn | None:
    """The turn after its client has received all of it; None if nothing changes."""
    return None if turn.delivered else turn.model_copy(update={"delivered": True, "progress": None})


def retry_key(turn: Turn) -> bytes | None:
    """The key by which a retry of the request finds the turn, if one can."""
    return None if turn.delivered else turn.request_key or None


ANSWERS_KEPT = 3600.0
"""Seconds for which an undelivered answer is kept for a retry."""


def can_be_retaken(
    broke_off: float | None,
    proxy_id: str | None,
    *,
    proxies: Container[str],
    last_alive: Mapping[str, float],
    window: float,
    steady: float,
) -> bool:
    """Whether a retry of the request may take this proxy's answer, which broke off or whose proxy has no lease.
    `proxies`: those with a lease; `last_alive`: when each proxy was last alive."""
    if broke_off is None and proxy_id is not None and proxy_id not in proxies:
        broke_off = last_alive.get(proxy_id)
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


def already_exists(response: Response) -> ValueError:
    return ValueError(f"there is a response {response.response_id} in session {response.session} already")


def unknown_call(call_id: str, session: str | None = None) -> UnknownCall:
    return UnknownCall(f"there is no call {call_id}{f' in session {session}' if session is not None else ''}")


def unknown_response(session: str, response_id: str) -> UnknownResponse:
    return UnknownResponse(f"there is no response {response_id} in session {session}")


def unreadable_session(name: str) -> StoreUnavailable:
    """Raised for an unreadable session: taken for one without rules, its calls would run without their approvals."""
    return StoreUnavailable(f"session {name} cannot be read: set its tools again, or delete it")


def check_limit(limit: int) -> None:
    if limit < 1:
        raise ValueError(f"limit is {limit}, and must be at least 1")


def place(kind: str, cursor: str | None, first: int = 0) -> int:
    """The place after which the page of `cursor` begins; `first` for the first page. Raises BadCursor."""
    if cursor is None:
        return first
    if not (match := re.fullmatch(rf"{kind}([0-9]{{1,18}})", cursor, re.ASCII)):
        raise BadCursor(f"cursor {cursor!r} is not from a list of {kind}s")
    return int(match[1])


def event_id(epoch: str, number: int) -> str:
    return f"{epoch}-{number}"


def event_after(cursor: str | None, epoch: str, last: int, lost: int) -> int:
    """The number after which the events of `cursor` begin; 0: at the oldest. `last`, `lost`: the numbers of the last
    event, and of the last event that is no longer kept. Raises CursorLost, BadCursor."""
    if cursor is None:
        return 0
    if not (match := re.fullmatch(r"(?:([0-9a-f]{1,32})-)?([0-9]{1,18})", cursor, re.ASCII)):
        raise BadCursor(f"{cursor!r} is not the id of an event")
    # ids of earlier versions have no epoch
    if match[1] != epoch or not lost <= int(match[2]) <= last:
        raise CursorLost(cursor)
    return int(match[2])


def name_after(cursor: str | None) -> str:
    """The name after which the page of `cursor` begins, in a list by name. Raises BadCursor."""
    if cursor is None:
        return ""
    if not cursor.startswith("session."):
        raise BadCursor(f"cursor {cursor!r} is not from a list of sessions")
    return cursor.removeprefix("session.")


LAST_PLACE = 10**18 - 1
"""Greater than any place."""


def cursor_of(kind: str, place: int | str) -> str:
    return f"{kind}{place}"


def page_of[T](rows: Sequence[tuple[int | str, T | None]], kind: str, limit: int) -> Page[T]:
    """A page from up to `limit` + 1 rows of (place, record): the extra row shows that a next page exists. A record is
    None if it is unreadable."""
    items = [record for _, record in rows[:limit] if record is not None]
    has_more = len(rows) > limit
    return Page.model_construct(items=items, next_cursor=cursor_of(kind, rows[limit - 1][0]) if has_more else None)
