"""What the store is told of one loop: its turn as far as it has come, with the calls of each round."""

from collections.abc import Sequence

from addon.core.answer import Candidate
from addon.core.documents import Document
from addon.graft.exchange import Exchange
from addon.graft.records import call_of, keys_of, new_turn_id, step_of, turn_of
from store.base import Store
from store.models import Step


class Journal:
    """`steps` and `shown` are what the rounds before the present one came to; `usage` has one entry a round."""

    def __init__(self, store: Store, exchange: Exchange) -> None:
        self.store = store
        self.exchange = exchange
        self.turn_id = new_turn_id()
        self.steps: list[Step] = []
        self.shown: list[Document] = []
        self.usage: list[Document] = []

    def begin_round(self) -> None:
        self.usage.append({})

    def note(self, response: Document) -> None:
        """Take in what a response says of usage; what is said later in a round holds for all of it."""
        if isinstance(usage := response.get("usageMetadata"), dict):
            self.usage[-1] = usage

    def took(self, candidate: Candidate) -> None:
        """The proxy answers what came of this round: the client's turn goes on."""
        if candidate.captured:
            self.steps.append(step_of(candidate))
        self.shown += candidate.shown

    async def save(self, candidates: Sequence[Candidate], *, ended: bool) -> None:
        """Store the turn with these candidates of the present round. Only one that has ended can be found by what the
        client sees of it. Raises StoreUnavailable."""
        for candidate in candidates:
            if self.steps or candidate.is_grafted:
                await self._save(candidate, ended=ended and not candidate.paused)

    async def _save(self, candidate: Candidate, *, ended: bool) -> None:
        exchange, turn_id, now = self.exchange, candidate.turn_id, self.store.clock()
        shown, steps = [*self.shown, *candidate.shown], [*self.steps, step_of(candidate)]
        number = len(self.steps)
        await self.store.save_turn(
            turn_of(exchange, turn_id, shown, steps, delivered=ended, now=now, usage=[u for u in self.usage if u]),
            [call_of(exchange, turn_id, call, now=now, number=number) for call in candidate.captured],
            keys_of(exchange, shown) if ended else [],
        )
