"""The content of Gemini's parts that items for clients lack: signatures, ids of calls, and parts without an item.

A client that keeps its own history carries it, sealed, as the `encrypted_content` of a reasoning item at the end of
each response. The item's position in a later input does not matter: calls are found by their ids, texts by their
hashes. Pure.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from addon.core.framing.documents import Document, camel, decode, encode, get

Part = Document

_OF_CALLS = ("name", "args")


class Carried(NamedTuple):
    """`calls`: call id → additions to the functionCall and to its Part. `steps`: call id → a number shared by the calls
    of one answer. `texts`: hash of a text → its Parts, with lengths instead of the visible texts."""

    calls: dict[str, tuple[Document, Document]]
    steps: dict[str, int]
    texts: dict[str, list[Document]]

    def call(self, call_id: str, name: str, args: Document) -> Part | None:
        """The model's Part of a call; None if it is not carried."""
        if (found := self.calls.get(call_id)) is None:
            return None
        inner, outer = found
        return {"functionCall": {**inner, "name": name, "args": args}, **outer}

    def behind(self, earlier: "Carried") -> "Carried":
        """Both combined. This one wins."""
        first = 1 + max(earlier.steps.values(), default=-1)
        steps = {call_id: first + number for call_id, number in self.steps.items()}
        return Carried(earlier.calls | self.calls, earlier.steps | steps, earlier.texts | self.texts)

    def text(self, text: str) -> list[Part] | None:
        """The model's Parts of a text; None if they are not carried."""
        if (pieces := self.texts.get(_text_hash(text))) is None:
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
    """The content that a client must carry for the model's Parts, or None. `call_ids`: of their calls, in order."""
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
    """Reads results of `to_carry` for several answers. A client cannot change them."""
    found = Carried({}, {}, {})
    for number, text in enumerate(carried):
        document: Mapping[str, Document] = decode(text.encode("utf-8", "surrogatepass"))
        found.calls.update((call_id, (inner, outer)) for call_id, (inner, outer) in document.get("calls", {}).items())
        found.steps.update(dict.fromkeys(document.get("calls", {}), number))
        found.texts.update(document.get("texts", {}))
    return found


def _carried_text(run: Sequence[Part]) -> dict[str, list[Document]]:
    """Parts between calls, by the hash of their visible text. None if they are plain text only."""
    text = "".join(part["text"] for part in run if _is_visible_text(part))
    if not text or all(len(part) == 1 and _is_visible_text(part) for part in run):
        return {}
    return {_text_hash(text): [{**part, "text": len(part["text"])} if _is_visible_text(part) else part for part in run]}


def _is_visible_text(part: Part) -> bool:
    return isinstance(part.get("text"), str) and not part.get("thought")


def _text_hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
