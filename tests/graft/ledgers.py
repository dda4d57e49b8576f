"""Chats in the ledger, and look-ups of histories."""

from collections.abc import Sequence
from typing import Any

from addon.core.framing.documents import Document, encode
from addon.core.history.keys import Keys, asker_digest, marks_of
from addon.core.history.placeholder import Placeholder
from addon.core.history.request import Request, parse
from addon.core.history.turns import chain_key, chains_without_ids, windows, windows_without_ids
from addon.core.history.visible import text_of, visible_digest
from addon.graft import ledger
from addon.graft.ledger_evidence import Miss
from addon.graft.ledger_search import Hits, TrueTurns
from store.base import Store
from store.budget import Budget
from store.models import Call, Slot, Step, Turn
from tests.contents import call, model, user

PLACEHOLDER = Placeholder("Tool call completed: {names} [{turn_id}]")


def turn_id(n: int) -> str:
    return f"turn_{n:016x}"


def digest(content: Document) -> bytes:
    return visible_digest(content["parts"])


def keys_of(store: Store, *, asker: str = "", name: str = "", instruction: str = "") -> Keys:
    return Keys(store.secret, asker_digest(store.secret, asker), name, instruction.encode())


def made(keys: Keys, history: Sequence[Document], marked: Document | None = None) -> tuple[bytes, list[bytes]]:
    """Chain and keys of the last turn of a history of single Contents."""
    chain = b""
    for content in history:
        chain = chain_key(chain, content["role"], digest(content))
    own = keys.own(digest(history[-1]))
    sent = windows([digest(content) for content in history[:-1]], digest(history[-1]))
    marks = [keys.mark(*mark) for mark in marks_of([marked or history[-1]])]
    windowed = [keys.window(own, window) for window in sent]
    return chain, [own, keys.history(own, chain), keys.whole(own, chain), *windowed, *marks]


async def kept(
    store: Store,
    n: int,
    history: Sequence[Document],
    *,
    session: str = "default",
    true: Document | None = None,
    args: Any = None,
    root: dict[str, str] | None = None,
    **fields: Any,
) -> Call:
    """Save an entry of one call for the last turn of the history; `root`: arguments of `keys_of`."""
    keys = keys_of(store, **root or {})
    chain, found_by = made(keys, history, true)
    if PLACEHOLDER.find(text_of(history[-1]["parts"])):
        before = read(history[:-1])
        before.history.identify(before.body)
        turns, sent = before.history.turns, windows_without_ids(before.history.turns, before.body, PLACEHOLDER)
        bare = [keys.bare(chains_without_ids(turns, before.body, PLACEHOLDER)[-1]), *map(keys.bare_window, sent)]
        found_by = [*found_by[:3], *bare, *found_by[3 + len(sent) :]]
    one = Call(
        call_id=f"call_{n}",
        session=session,
        name="f",
        args=args or {"n": n},
        turn_id=turn_id(n),
        created_at=1e6,
        updated_at=1e6,
    )
    known = {
        "visible": (true if true and digest(true) == digest(history[-1]) else history[-1])["parts"],
        "delivered": True,
        "chain": keys.mask_chain(turn_id(n).encode(), chain),
        "pair": keys.window(keys.own(digest(history[-1])), windows([digest(history[-2])], digest(history[-1]))[0]),
    }
    turn = Turn(
        turn_id=turn_id(n),
        session=session,
        steps=[Step(content=true or model(call("f", args=one.args)), slots=[Slot(name="f", call_id=one.call_id)])],
        created_at=1e6,
        **{**known, **fields},
    )
    await store.save_turn(turn, [one], found_by)
    return one


async def plain(store: Store, history: Sequence[Document], **root: str) -> None:
    """Save the last turn of the history, as one without calls."""
    keys = keys_of(store, **root)
    chain, found_by = made(keys, history)
    await store.save_plain("default", found_by, keys.mask_chain(found_by[0], chain))


def read(contents: Sequence[Document]) -> Request:
    return parse(encode({"contents": list(contents)}))


async def look_up(
    store: Store,
    request: Request,
    session: str,
    keys: Keys,
    missed: ledger.Missed = lambda turn, miss: None,
    cache: TrueTurns | None = None,
    *,
    strict: bool = False,
) -> Hits:
    revision, cache = store.revision(session), cache or TrueTurns(store, Budget())
    body, history = request.body, request.history
    return await ledger.hits_of(
        store, session, revision, keys, body, history, PLACEHOLDER, missed, {}, cache, strict=strict
    )


async def hits_of(store: Store, request: Request, session: str = "default", **root: str) -> Hits:
    return await look_up(store, request, session, keys_of(store, **root))


async def missed(store: Store, contents: Sequence[Document], **root: str) -> dict[str, Miss]:
    """The reason for each missed turn, by its text."""
    misses: dict[str, Miss] = {}
    keys = keys_of(store, **root)
    await look_up(store, read(contents), "default", keys, lambda turn, miss: misses.update({turn.text: miss}))
    return misses


async def found(
    store: Store, contents: Sequence[Document], session: str = "default", **root: str
) -> dict[int, list[str]]:
    return ids_of(await hits_of(store, read(contents), session, **root))


async def found_strictly(store: Store, contents: Sequence[Document]) -> dict[int, list[str]]:
    return ids_of(await look_up(store, read(contents), "default", keys_of(store), strict=True))


def ids_of(hits: Hits) -> dict[int, list[str]]:
    return {index: [true.turn_id for true in true_turns] for index, true_turns in hits.items()}


A, B, C = user("a"), model("b"), user("c")


ASKED = user("Please send the invoice for March to Anna, and keep a copy of it.")
SAID_SO = model("I have sent the invoice for March to Anna, and kept a copy.")
MOVED = user("Could you move the meeting on the budget to Friday afternoon?")
DONE, YES = model("Done."), user("yes")


SAID = model(call("f"))
