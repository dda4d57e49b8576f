"""Where a request goes on: a conversation by its name, or the response before it; and how it moves on, in one step."""

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from addon.control.problems import Problem
from addon.core.documents import Document
from store.base import ConversationMoved, Store, UnknownResponse
from store.models import Response

NAME_FORM = "[A-Za-z0-9_.:@/+-]{1,128}"
_NAME = re.compile(NAME_FORM)


class Thread(NamedTuple):
    """`contents`: the history so far. `tools`: those that its client gave, as Gemini's; None for none. `name`: the
    conversation's, if it is one. `previous`: the response that it is at."""

    session: str
    name: str | None = None
    previous: str | None = None
    contents: Sequence[Document] = ()
    tools: Document | None = None


def new_response_id() -> str:
    return f"resp_{secrets.token_hex(24)}"


def conversation_name(value: Any) -> str | None:
    """The name of a conversation, a string or `{"id": …}`; None for none. Raises Problem (400)."""
    name = value.get("id") if isinstance(value, dict) and set(value) == {"id"} else value
    if name is None and value is None:
        return None
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Problem(
            400, f'conversation: must be a name of the form {NAME_FORM}, or {{"id": a name}}', field="conversation"
        )
    return name


class Threads:
    def __init__(self, store: Store) -> None:
        self.store = store
        self._busy: set[tuple[str, str]] = set()

    @contextmanager
    def alone(self, session: str, name: str | None) -> Iterator[None]:
        """Around a request of a conversation: no second one runs beside it. Raises Problem (409)."""
        if name is None:
            yield
            return
        key = (session, name)
        if key in self._busy:
            raise _locked(name, "another request of it is running: wait for its answer")
        self._busy.add(key)
        try:
            yield
        finally:
            self._busy.discard(key)

    async def find(self, session: str, name: str | None, previous: str | None) -> Thread:
        """Raises Problem (400), StoreUnavailable."""
        if name is not None and previous is not None:
            words = "previous_response_id: cannot be used together with conversation"
            raise Problem(400, words, field="previous_response_id", code="mutually_exclusive_parameters")
        head = previous if name is None else await self.store.conversation(session, name)
        if head is None:
            return Thread(session, name)
        try:
            responses = await self.store.history(session, head)
        except UnknownResponse:
            raise _not_found(previous or head) from None
        last = responses[-1]
        if previous is not None and last.document is None:
            raise _not_found(previous)
        return Thread(session, name, head, [c for one in responses for c in one.contents], last.tools)

    async def add(
        self,
        thread: Thread,
        response_id: str,
        contents: Sequence[Document],
        *,
        tools: Document | None,
        calls: dict[str, Document],
        document: Document | None,
    ) -> None:
        """The thread goes on with a response. Raises Problem (409), StoreUnavailable."""
        response = Response(
            response_id=response_id,
            session=thread.session,
            conversation=thread.name,
            previous=thread.previous,
            contents=list(contents),
            tools=tools,
            calls=calls,
            document=document,
            created_at=self.store.clock(),
        )
        try:
            await self.store.add_response(response, head=thread.previous if thread.name is not None else None)
        except ConversationMoved:
            raise _locked(str(thread.name), "another proxy has moved it on: ask again") from None
        except UnknownResponse:
            raise _not_found(str(thread.previous)) from None


def _not_found(response_id: str) -> Problem:
    return Problem(
        400,
        f"Previous response with id '{response_id}' not found.",
        field="previous_response_id",
        code="previous_response_not_found",
    )


def _locked(name: str, why: str) -> Problem:
    return Problem(409, f"conversation {name!r}: {why}", field="conversation", code="conversation_locked")
