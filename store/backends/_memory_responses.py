"""Responses and conversations in memory. A mixin of `MemoryStore`."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import pydantic_core

from store.backends import _rules as rules
from store.backends._memory_base import MemoryBase, StoredAnswer
from store.base import ConversationMoved
from store.models import GivenCall, Response, UndeliveredAnswer


@dataclass
class _Thread:
    """A tree of responses. `used_at`: when the last response was added."""

    used_at: float


@dataclass
class _StoredResponse:
    """A response. `references`: the number of responses that follow it, and of conversations whose head it is or was: a
    conversation keeps all responses of its history."""

    response: Response
    thread: _Thread
    references: int = 0


@dataclass
class _Responses:
    """The responses of one session. `heads`: by name of the conversation."""

    by_id: dict[str, _StoredResponse] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    given_calls: dict[str, GivenCall] = field(default_factory=dict)

    def drop(self, response: Response) -> None:
        del self.by_id[response.response_id]
        for call_id in response.calls:
            given = self.given_calls.get(call_id)
            if given and given.response_id == response.response_id:
                del self.given_calls[call_id]


class MemoryResponses(MemoryBase):
    def __init__(self, *, ttl: float = 7 * 24 * 3600, clock: Callable[[], float] = time.time) -> None:
        super().__init__(ttl=ttl, clock=clock)
        self._responses: dict[str, _Responses] = {}

    def _responses_of(self, session: str) -> _Responses:
        """The session's responses, for reading only."""
        self._check_open()
        return self._responses.get(session) or _Responses()

    def _stored(self, session: str, response_id: str) -> _StoredResponse:
        if stored := self._responses_of(session).by_id.get(response_id):
            return stored
        raise rules.unknown_response(session, response_id)

    async def add_response(
        self, response: Response, *, head: str | None = None, undelivered: UndeliveredAnswer | None = None
    ) -> None:
        rules.check_head(response, head)
        response = Response.model_validate_json(response.model_dump_json())
        session, name = response.session, response.conversation
        responses = self._responses_of(session)
        if name is not None and (current := responses.heads.get(name)) != head:
            raise ConversationMoved(name, current, head)
        previous = self._stored(session, response.previous) if response.previous is not None else None
        if response.response_id in responses.by_id:
            raise rules.already_exists(response)

        now = self.clock()
        stored = _StoredResponse(response, previous.thread if previous else _Thread(now))
        stored.thread.used_at = now
        if previous:
            previous.references += 1
        if name is not None:
            responses.heads[name] = response.response_id
            stored.references += 1
        responses.by_id[response.response_id] = stored
        for call_id, part in response.calls.items():
            responses.given_calls[call_id] = GivenCall(part, response.response_id)
        self._responses[session] = responses
        if undelivered is not None:
            answer = pydantic_core.from_json(pydantic_core.to_json(undelivered.answer, inf_nan_mode="null"))
            self._unsent[session, response.response_id] = StoredAnswer(undelivered._replace(answer=answer), now)

    async def take_back(self, session: str, response_id: str, *, head: str | None = None) -> None:
        stored = self._stored(session, response_id)
        heads, name = self._responses[session].heads, stored.response.conversation
        if name is not None and heads.get(name) == response_id:
            del heads[name]
            stored.references -= 1
            if head is not None:
                heads[name] = head
        self._delete(session, stored)

    async def response(self, session: str, response_id: str) -> Response:
        return self._stored(session, response_id).response

    async def responses(self, session: str, response_ids: Collection[str]) -> dict[str, Response]:
        self._check_open()
        stored = self._responses_of(session).by_id
        return {one: stored[one].response for one in response_ids if one in stored}

    async def conversation(self, session: str, name: str) -> str | None:
        return self._responses_of(session).heads.get(name)

    async def history(self, session: str, response_id: str) -> list[Response]:
        chain = [self._stored(session, response_id).response]
        while (previous := chain[-1].previous) is not None:
            response = self._stored(session, previous).response
            chain.append(response.model_copy(update={"tools": None, "document": None}))
        return chain[::-1]

    async def given_calls(self, session: str, call_ids: Collection[str]) -> dict[str, GivenCall]:
        given = self._responses_of(session).given_calls
        return {call_id: given[call_id] for call_id in call_ids if call_id in given}

    async def delete_response(self, session: str, response_id: str) -> None:
        stored = self._stored(session, response_id)
        if stored.response.document is None:
            raise rules.unknown_response(session, response_id)
        self._delete(session, stored)

    def _delete(self, session: str, stored: _StoredResponse) -> None:
        """Delete the document, and the rest once nothing references the response."""
        stored.response = stored.response.model_copy(update={"document": None})
        self._unsent.pop((session, stored.response.response_id), None)
        responses = self._responses[session]
        while not stored.references and stored.response.document is None:
            responses.drop(stored.response)
            if stored.response.previous is None:
                break
            stored = responses.by_id[stored.response.previous]
            stored.references -= 1

    def _expire_responses(self, horizon: float) -> int:
        """Returns the number of deleted responses."""
        deleted = 0
        for session, responses in list(self._responses.items()):
            old = [stored.response for stored in responses.by_id.values() if stored.thread.used_at < horizon]
            for response in old:
                responses.drop(response)
            deleted += len(old)
            responses.heads = {name: head for name, head in responses.heads.items() if head in responses.by_id}
            if not responses.by_id:
                del self._responses[session]
        oldest = max(horizon, self.clock() - rules.ANSWERS_KEPT)
        self._unsent = {name: answer for name, answer in self._unsent.items() if answer.kept_at >= oldest}
        return deleted
