"""What Gemini's parts have beyond the items that a client gets: signatures, ids of calls, parts that no item shows.

A client that keeps its own history carries them, sealed, as the `encrypted_content` of a reasoning item, which stands
behind the other items of its response. Where the client puts the item in a later input does not matter: calls are found
by their ids, texts by their hashes. Pure.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from addon.core.framing.documents import Document, camel, decode, encode, get

Part = Document

_OF_CALLS = ("name", "args")


class Carried(NamedTuple):
    """`calls`: call id → what to add to the functionCall and to its Part. `steps`: call id → a number that is the same
    for the calls of one answer. `texts`: hash of a text → its Parts, with the lengths of visible texts in place of
    them."""

    calls: dict[str, tuple[Document, Document]]
    steps: dict[str, int]
    texts: dict[str, list[Document]]

    def call(self, call_id: str, name: str, args: Document) -> Part | None:
        """The Part of a call as the model made it; None if nothing is known of it."""
        if (found := self.calls.get(call_id)) is None:
            return None
        inner, outer = found
        return {"functionCall": {**inner, "name": name, "args": args}, **outer}

    def behind(self, earlier: "Carried") -> "Carried":
        """What both say."""
        first = 1 + max(earlier.steps.values(), default=-1)
        steps = {call_id: first + number for call_id, number in self.steps.items()}
        return Carried(earlier.calls | self.calls, earlier.steps | steps, earlier.texts | self.texts)

    def text(self, text: str) -> list[Part] | None:
        """The Parts of a text as the model made them; None if nothing is known of it."""
        if (pieces := self.texts.get(_hash(text))) is None:
            return None
        parts, at = [], 0
        for piece in pieces:
            if isinstance(length := piece.get("text"), int):
                parts.append({**piece, "text": text[at : at + length]})
                at += length
            else:
                parts.append(piece)
        return parts


NOTHING_CARRIED = Carried({}, {}, {})


def to_carry(parts: Sequence[Part], call_ids: Iterable[str]) -> str | None:
    """What a client must carry of the model's Parts; None if nothing. `call_ids`: of the calls among them, in order."""
    ids = iter(call_ids)
    calls: dict[str, list[Document]] = {}
    texts: dict[str, list[Document]] = {}
    run: list[Part] = []
    for part in (*parts, None):
        call = get(part, "functionCall") if part is not None else None
        if part is not None and not isinstance(call, dict):
            run.append(part)
            continue
        texts |= _carried_text(run)
        run = []
        if part is not None and isinstance(call, dict):
            inner = {key: value for key, value in call.items() if key not in _OF_CALLS}
            outer = {key: value for key, value in part.items() if camel(key) != "functionCall"}
            calls[next(ids)] = [inner, outer]
    if not texts and not any(inner or outer for inner, outer in calls.values()):
        return None
    return encode({"calls": calls, "texts": texts}).decode()


def read_carried(carried: Sequence[str]) -> Carried:
    """What `to_carry` has returned for several answers. A client cannot change it."""
    found = Carried({}, {}, {})
    for number, text in enumerate(carried):
        document: Mapping[str, Document] = decode(text.encode("utf-8", "surrogatepass"))
        found.calls.update((call_id, (inner, outer)) for call_id, (inner, outer) in document.get("calls", {}).items())
        found.steps.update(dict.fromkeys(document.get("calls", {}), number))
        found.texts.update(document.get("texts", {}))
    return found


def _carried_text(run: Sequence[Part]) -> dict[str, list[Document]]:
    """Parts between calls, by the hash of their visible text. None if plain text alone tells them."""
    text = "".join(part["text"] for part in run if _is_visible(part))
    if not text or all(len(part) == 1 and _is_visible(part) for part in run):
        return {}
    return {_hash(text): [{**part, "text": len(part["text"])} if _is_visible(part) else part for part in run]}


def _is_visible(part: Part) -> bool:
    return isinstance(part.get("text"), str) and not part.get("thought")


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
