"""One client's chat: its history, changes of the history, and its true turns."""

import random
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.simulation.words import Kind

Document = dict[str, Any]
Delivery = Literal["placeholder", "loop", "passthrough", "mixed"]
State = Literal["intact", "edited", "cut"]

Did = tuple[str, str, str]
"""A call as a model sees it: name, arguments, result; the last two as JSON."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn in the client's history. `did`: its true calls; `hidden`: the number of calls that the client did not see.
    `is_ordinary`: a user's words, not the answers to calls."""

    side: Literal["user", "model"]
    parts: tuple[Document, ...]
    did: tuple[Did, ...] = ()
    hidden: int = 0
    is_ordinary: bool = True

    @property
    def content(self) -> Document:
        return {"role": self.side, "parts": list(self.parts)}

    @property
    def visible(self) -> tuple[str, ...]:
        """The visible part of the turn."""
        text = "".join(part.get("text", "") for part in self.parts if not part.get("thought")).strip()
        calls = (part.get("functionCall") or part.get("functionResponse") for part in self.parts)
        bare = ({key: value for key, value in call.items() if key != "id"} for call in calls if call)
        return self.side, text, *map(str, bare)


@dataclass(frozen=True, slots=True)
class Habits:
    """A kind of client. `clock`: its system instruction contains the time. `name`: it names its chat."""

    words: Kind
    delivery: Delivery
    newest: bool  # of the models: with ids and signatures
    echoes: bool
    streams: bool
    surface: Literal["developer", "vertex", "codeassist"]
    account: str
    clock: bool
    name: str
    restless: float  # how often it does not simply continue
    hasty: float  # how often it hangs up before the end of a stream
    odd: float = 0.0  # how often it quotes, imitates, forges or forks
    drops_ids: bool = False  # of placeholders
    counts: bool = False  # its model counts the ids of calls from zero in each chat
    rotates: bool = False  # its API key changes from hour to hour
    canned: float = 0.0  # how often a script answers instead of the model

    @property
    def tells(self) -> str:
        """The marks of the chat besides its words."""
        return "signatures" if self.echoes else "name" if self.name else ""

    @property
    def model(self) -> str:
        return "gemini-3-flash" if self.newest else "gemini-2.5-flash"


@dataclass(slots=True)
class Chat:
    number: int
    habits: Habits
    turns: list[Turn] = field(default_factory=list)
    state: State = "intact"
    edited_at: int | None = None
    cuts: int = 0

    @property
    def beginning(self) -> tuple[int, int]:
        """The chat, and the number of its cuts."""
        return self.number, self.cuts

    @property
    def question(self) -> str:
        """The user's last words."""
        last = self._last_ordinary()
        return "" if last is None else str(self.turns[last].parts[0]["text"])

    def visible_to(self, last: Turn) -> tuple[tuple[str, ...], ...]:
        """The visible part of the history up to this turn."""
        end = next(at for at, turn in enumerate(self.turns) if turn is last)
        return tuple(turn.visible for turn in self.turns[: end + 1])

    def regenerate(self) -> bool:
        """Forget the last answer. Returns whether the chat had one."""
        last = self._last_ordinary()
        if last is None or last == len(self.turns) - 1:
            return False
        del self.turns[last + 1 :]
        return True

    def ask(self, text: str) -> None:
        self.turns.append(Turn("user", ({"text": text},)))

    def ask_otherwise(self, text: str) -> bool:
        """Change the last question, and forget its answer."""
        if not self.regenerate():
            return False
        self.turns[-1] = Turn("user", ({"text": text},))
        return True

    def edit(self, rng: random.Random, text: str) -> None:
        """Change an earlier turn, and keep the later ones."""
        ordinary = [at for at, turn in enumerate(self.turns) if turn.side == "user" and turn.is_ordinary]
        if len(ordinary) < 2:
            return
        at = rng.choice(ordinary)
        self.turns[at] = Turn("user", ({"text": text},))
        self.edited_at = at if self.edited_at is None else min(at, self.edited_at)
        self.state = "edited" if self.state == "intact" else self.state

    def cut(self, rng: random.Random, summary: str = "") -> None:
        """Remove the beginning, or replace it by a summary."""
        ordinary = [at for at, turn in enumerate(self.turns) if turn.side == "user" and turn.is_ordinary]
        if len(ordinary) < 3:
            return
        at = rng.choice(ordinary[1:-1])
        begun = [Turn("user", ({"text": summary},)), Turn("model", ({"text": "Got it."},))] if summary else []
        self.turns = [*begun, *self.turns[at:]]
        if self.edited_at is not None:
            self.edited_at = max(0, self.edited_at - at) + len(begun)
        self.state = "cut"
        self.cuts += 1

    def _last_ordinary(self) -> int | None:
        return next((at for at in range(len(self.turns) - 1, -1, -1) if self._is_question(at)), None)

    def _is_question(self, at: int) -> bool:
        return self.turns[at].side == "user" and self.turns[at].is_ordinary
