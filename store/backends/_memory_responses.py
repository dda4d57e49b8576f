"""Responses and conversations in memory. A mixin: `MemoryStore` is made of it."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import pydantic_core

from store.backends import _rules as rules
from store.backends._memory_base import KeptAnswer, MemoryBase
from store.base import ConversationMoved
from store.models import GivenCall, Response, UndeliveredAnswer


@dataclass
class _Thread:
    """What the responses of one tree share: when the last was added."""

    used_at: float


@dataclass
class _Kept:
    """A response. `needed` counts those that follow it and the conversations that are or were at it: one that has
    moved on still needs all that it has come by."""

    response: Response
    thread: _Thread
    needed: int = 0


@dataclass
class _Responses:
    """What is kept for one session. `heads`: by the conversation's name."""

    kept: dict[str, _Kept] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    given: dict[str, GivenCall] = field(default_factory=dict)

    def drop(self, response: Response) -> None:
        del self.kept[response.response_id]
        for call_id in response.calls:
            given = self.given.get(call_id)
            if given and given.response_id == response.response_id:
                del self.given[call_id]


class MemoryResponses(MemoryBase):
    def __init__(self, *, ttl: float = 7 * 24 * 3600, clock: Callable[[], float] = time.time) -> None:
        super().__init__(ttl=ttl, clock=clock)
        self._responses: dict[str, _Responses] = {}

    def _responses_of(self, session: str) -> _Responses:
        """The session's responses, to be read."""
        self._check_open()
        return self._responses.get(session) or _Responses()

    def _kept(self, session: str, response_id: str) -> _Kept:
        if kept := self._responses_of(session).kept.get(response_id):
            return kept
        raise rules.unknown_response(session, response_id)

    async def add_response(
        self, response: Response, *, head: str | None = None, undelivered: UndeliveredAnswer | None = None
    ) -> None:
        rules.check_head(response, head)
        response = Response.model_validate_json(response.model_dump_json())
        session, name = response.session, response.conversation
        mine = self._responses_of(session)
        if name is not None and (stands := mine.heads.get(name)) != head:
            raise ConversationMoved(name, stands, head)
        previous = self._kept(session, response.previous) if response.previous is not None else None
        if response.response_id in mine.kept:
            raise rules.taken(response)

        now = self.clock()
        kept = _Kept(response, previous.thread if previous else _Thread(now))
        kept.thread.used_at = now
        if previous:
            previous.needed += 1
        if name is not None:
            mine.heads[name] = response.response_id
            kept.needed += 1
        mine.kept[response.response_id] = kept
        for call_id, part in response.calls.items():
            mine.given[call_id] = GivenCall(part, response.response_id)
        self._responses[session] = mine
        if undelivered is not None:
            answer = pydantic_core.from_json(pydantic_core.to_json(undelivered.answer, inf_nan_mode="null"))
            self._unsent[session, response.response_id] = KeptAnswer(undelivered._replace(answer=answer), now)

    async def take_back(self, session: str, response_id: str, *, head: str | None = None) -> None:
        kept = self._kept(session, response_id)
        heads, name = self._responses[session].heads, kept.response.conversation
        if name is not None and heads.get(name) == response_id:
            del heads[name]
            kept.needed -= 1
            if head is not None:
                heads[name] = head
        self._delete(session, kept)

    async def response(self, session: str, response_id: str) -> Response:
        return self._kept(session, response_id).response

    async def conversation(self, session: str, name: str) -> str | None:
        return self._responses_of(session).heads.get(name)

    async def history(self, session: str, response_id: str) -> list[Response]:
        chain = [self._kept(session, response_id).response]
        while (previous := chain[-1].previous) is not None:
            response = self._kept(session, previous).response
            chain.append(response.model_copy(update={"tools": None, "document": None}))
        return chain[::-1]

    async def given_calls(self, session: str, call_ids: Collection[str]) -> dict[str, GivenCall]:
        given = self._responses_of(session).given
        return {call_id: given[call_id] for call_id in call_ids if call_id in given}

    async def delete_response(self, session: str, response_id: str) -> None:
        kept = self._kept(session, response_id)
        if kept.response.document is None:
            raise rules.unknown_response(session, response_id)
        self._delete(session, kept)

    def _delete(self, session: str, kept: _Kept) -> None:
        """Its document, and the rest as soon as nothing needs it."""
        kept.response = kept.response.model_copy(update={"document": None})
        self._unsent.pop((session, kept.response.response_id), None)
        mine = self._responses[session]
        while not kept.needed and kept.response.document is None:
            mine.drop(kept.response)
            if kept.response.previous is None:
                break
            kept = mine.kept[kept.response.previous]
            kept.needed -= 1

    def _expire_responses(self, horizon: float) -> int:
        """Returns how many responses went."""
        gone = 0
        for session, mine in list(self._responses.items()):
            old = [kept.response for kept in mine.kept.values() if kept.thread.used_at < horizon]
            for response in old:
                mine.drop(response)
            gone += len(old)
            mine.heads = {name: head for name, head in mine.heads.items() if head in mine.kept}
            if not mine.kept:
                del self._responses[session]
        kept_at = max(horizon, self.clock() - rules.ANSWERS_KEPT)
        self._unsent = {name: one for name, one in self._unsent.items() if one.kept_at >= kept_at}
        return gone
