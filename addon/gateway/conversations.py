"""Finds the history that a request continues, by conversation or previous response, and appends to it atomically."""

import logging
import re
import secrets
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from addon.core.dialects.responses.conversations import stored_items
from addon.core.framing.documents import Document
from addon.gateway.handover import Handover
from addon.gateway.items import ADDED, INPUT, ItemIds, items_behind
from addon.graft.late_writes import LateWrites
from addon.graft.owners import Owners
from addon.web.problems import Problem
from store.base import ConversationMoved, Store, StoreUnavailable, UnknownResponse
from store.models import Response, UndeliveredAnswer

logger = logging.getLogger("toolgraft")

MAX_NAME = 256
_MADE = re.compile(r"conv_[0-9a-f]{48}")
"""The form of the proxy's own names. A client's name creates a conversation by its first use."""


class ConversationSettings(NamedTuple):
    """Stored with the history. `tools`: the client's own tools, as Gemini's Tools; None: it gave none. `system`: the
    system texts. `one_by_one`: the client receives the calls of a step one at a time; None: all together. `metadata`,
    `created_at`: of the conversation, if `/v1/conversations` has created or changed it."""

    tools: list[Document] | None = None
    system: list[Document] | None = None
    one_by_one: bool | None = None
    metadata: dict[str, str] | None = None
    created_at: float | None = None

    @property
    def record(self) -> Document | None:
        return {name: value for name, value in self._asdict().items() if value is not None} or None


class Conversation(NamedTuple):
    """`name`: None for a request that continues from a response by its id. `previous`: the id of the last response;
    None if the history is empty, or known only to a connection. `contents`: the history so far. `turn_ids`: for each of
    its model Contents the id of the ledger's turn, "" if none is known. `calls`: the calls of the last model turn, by
    the ids that the client knows. `added`: items that clients added since, for the next request before its input."""

    session: str
    name: str | None = None
    previous: str | None = None
    contents: Sequence[Document] = ()
    turn_ids: Sequence[str] = ()
    calls: Mapping[str, Document] = {}
    settings: ConversationSettings = ConversationSettings()
    added: Sequence[Document] = ()

    @property
    def unstored(self) -> Sequence[Document]:
        """The Contents of the history that are not in the store."""
        return self.contents if self.previous is None else ()


class LocalHistory:
    """The history of a connection's last response, if it is not stored, so that only this connection can continue
    it."""

    def __init__(self) -> None:
        self._response_id = ""
        self._conversation: Conversation | None = None

    def find(self, response_id: str | None) -> Conversation | None:
        return self._conversation if response_id == self._response_id else None

    def keep(self, response_id: str, conversation: Conversation) -> None:
        self._response_id, self._conversation = response_id, conversation

    def forget(self, response_id: str | None) -> None:
        """Forget the history if it is of this response."""
        if response_id == self._response_id:
            self._response_id, self._conversation = "", None


def new_response_id() -> str:
    return f"resp_{secrets.token_hex(24)}"


def conversation_name(value: Any) -> str | None:
    """The name of a conversation, given as a string or as `{"id": …}`. None for None. Raises Problem (400)."""
    name = value.get("id") if isinstance(value, dict) and set(value) == {"id"} else value
    if name is None and value is None:
        return None
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        words = f'conversation: must be a name of 1 to {MAX_NAME} printable characters, or {{"id": a name}}'
        raise Problem(400, words, field="conversation")
    return name


class Lock:
    """A request's lock of its conversation."""

    def __init__(self, store: Store, late_writes: LateWrites, session: str, name: str) -> None:
        self._holder = secrets.token_hex(8)
        self._take = partial(store.lock_conversation, session, name, holder=self._holder)
        self._release = partial(store.unlock_conversation, session, name, holder=self._holder)
        self._late_writes = late_writes
        self._may_hold = False

    async def take(self, proxy_id: str) -> bool:
        """False: another request has it. Raises StoreUnavailable."""
        self._may_hold = True  # also if the store does not answer
        self._may_hold = await self._take(proxy_id=proxy_id)
        return self._may_hold

    async def release(self) -> None:
        """Called before the last piece of an answer is sent: its client may continue at once, at another proxy.
        Idempotent. If the store fails, this is done later, after the earlier late writes: a retry at another proxy then
        finds what they note."""
        if not self._may_hold:
            return
        self._may_hold = False
        try:
            await self._release()
        except BaseException as error:  # also a cancellation: the lock would last as long as the proxy
            self._late_writes.add(f"lock {self._holder}", self._release)
            if not isinstance(error, Exception):
                raise
            logger.warning("the lock of a conversation ends later: %s", error)


class Conversations:
    def __init__(self, store: Store, owners: Owners) -> None:
        self.store = store
        self._owners = owners

    @asynccontextmanager
    async def alone(self, session: str, name: str | None) -> AsyncGenerator[Lock]:
        """Allows one request of a conversation at a time, at all proxies of the store. Raises Problem (409) if another
        is running, StoreUnavailable."""
        lock = Lock(self.store, self._owners.late_writes, session, name or "")
        try:
            if name is not None:
                await self._owners.catch_up()  # of a request that could not release its lock
                if not await lock.take(self._owners.proxy_id or ""):
                    raise _locked(name, "another request of this conversation is running: wait for its answer")
            yield lock
        finally:
            await lock.release()

    async def find(self, session: str, name: str | None, previous: str | None) -> Conversation:
        """Raises Problem (400), StoreUnavailable."""
        if name is not None and previous is not None:
            words = "previous_response_id: cannot be used together with conversation"
            raise Problem(400, words, field="previous_response_id", code="mutually_exclusive_parameters")
        head = previous if name is None else await self.store.conversation(session, name)
        if head is None and name is not None and _MADE.fullmatch(name):
            raise unknown_conversation(name)
        if head is None:
            return Conversation(session, name)
        try:
            responses = await self.store.history(session, head)
        except UnknownResponse:
            raise _not_found(previous or head) from None
        last = responses[-1]
        if previous is not None and last.document is None:
            raise _not_found(previous)
        contents = [content for one in responses for content in one.contents]
        turn_ids = [turn_id for one in responses for turn_id in _turn_ids(one)]
        spoke = next((one for one in reversed(responses) if any(c.get("role") == "model" for c in one.contents)), last)
        settings = ConversationSettings(**(last.tools or {}))
        added = await items_behind(self.store, responses)
        return Conversation(session, name, head, contents, turn_ids, spoke.calls, settings, added)

    async def add(
        self,
        conversation: Conversation,
        response_id: str,
        contents: Sequence[Document],
        *,
        turn_id: str,
        settings: ConversationSettings,
        calls: dict[str, Document],
        document: Document | None,
        answer: Document | None,
        handover: Handover,
    ) -> None:
        """Append a response to the conversation. `turn_id`: the ledger's turn of the last Content. `answer`: the
        client's document; None: `document` without its input. Raises Problem (409, 503)."""
        response = Response(
            response_id=response_id,
            session=conversation.session,
            conversation=conversation.name,
            previous=conversation.previous,
            contents=list(contents),
            tools=settings.record,
            calls=calls,
            document=document,
            turns=handover.turns,
            turn_id=turn_id,
            created_at=self.store.clock(),
        )
        head = conversation.previous if conversation.name is not None else None
        await self._store(response, head, handover.undelivered(answer))
        handover.mark_stored(response_id)
        try:
            await self.store.sync()
        except Exception as failure:  # the client gets an error, so the conversation must not contain the response
            try:
                await self.store.take_back(response.session, response_id, head=head)
                handover.mark_withdrawn()
            except Exception as error:
                logger.warning("the response to a failed request could not be removed from its conversation: %s", error)
            await handover.settle(whole=False)
            if isinstance(failure, StoreUnavailable):
                raise _not_kept(failure) from failure
            raise
        await handover.mark_durable()

    async def _store(self, response: Response, head: str | None, undelivered: UndeliveredAnswer | None = None) -> None:
        """Raises Problem (409, 503)."""
        try:
            await self.store.add_response(response, head=head, undelivered=undelivered)
        except ConversationMoved:
            words = "another request was answered meanwhile, so this answer is lost; its tools may have run"
            raise _locked(str(response.conversation), words, **{"x-should-retry": "false"}) from None
        except UnknownResponse:
            raise _not_found(str(response.previous)) from None
        except StoreUnavailable as error:
            raise _not_kept(error) from error

    # --- changes by clients ---------------------------------------------------------------------------------------

    async def begin(self, session: str, items: Sequence[Document], metadata: dict[str, str]) -> str:
        """Create a conversation with these items. Returns its name. Raises Problem (503), NotDurable."""
        name = f"conv_{secrets.token_hex(24)}"
        settings = ConversationSettings(metadata=metadata, created_at=self.store.clock())
        await self.append(Conversation(session, name, settings=settings), items)
        return name

    async def append(
        self,
        conversation: Conversation,
        items: Sequence[Document],
        *,
        metadata: dict[str, str] | None = None,
        removed: Sequence[str] = (),
        taken: Collection[str] = (),
    ) -> list[Document]:
        """Append to a named conversation, and wait until it is on disk. `removed`: ids of items. `taken`: ids that the
        new items may not have. Returns the items in the form of lists. Raises Problem (409, 503), NotDurable."""
        record_id, settings = new_response_id(), conversation.settings
        listed = stored_items(items, (), ItemIds(record_id), taken)
        document: Document = {"object": ADDED, INPUT: listed, **({"removed": list(removed)} if removed else {})}
        record = Response(
            response_id=record_id,
            session=conversation.session,
            conversation=conversation.name,
            previous=conversation.previous,
            tools=(settings if metadata is None else settings._replace(metadata=metadata)).record,
            document=document,
            created_at=self.store.clock(),
        )
        await self._store(record, conversation.previous)
        await self._sync_or_take_back(record)
        return listed

    async def end(self, conversation: Conversation) -> None:
        """Delete a named conversation; its responses stay. Raises Problem (409, 503), NotDurable."""
        record = Response(
            response_id=new_response_id(),
            session=conversation.session,
            conversation=conversation.name,
            previous=conversation.previous,
            created_at=self.store.clock(),
        )
        await self._store(record, conversation.previous)
        await self.store.take_back(record.session, record.response_id, head=None)
        await self.store.sync()

    async def _sync_or_take_back(self, record: Response) -> None:
        try:
            await self.store.sync()
        except BaseException:
            with suppress(Exception):
                await self.store.take_back(record.session, record.response_id, head=record.previous)
            raise


def _not_kept(error: StoreUnavailable) -> Problem:
    """The error for a response that was not stored for certain, although tools may have run."""
    logger.warning("a response is not safely stored: %s", error)
    detail = "the response could not be safely stored: send the same request again"
    return Problem(503, detail)


def _turn_ids(response: Response) -> list[str]:
    """For each model Content of a response the id of its turn: only the last one, the answer, has one."""
    count = sum(content.get("role") == "model" for content in response.contents)
    return [*[""] * (count - 1), response.turn_id] if count else []


def unknown_conversation(name: str) -> Problem:
    return Problem(404, f"Conversation with id '{name}' not found.", field="conversation")


def _not_found(response_id: str) -> Problem:
    return Problem(
        400,
        f"Previous response with id '{response_id}' not found.",
        field="previous_response_id",
        code="previous_response_not_found",
    )


def _locked(name: str, why: str, **headers: str) -> Problem:
    """`headers`: OpenAI's clients repeat a 409 unless `x-should-retry` forbids it."""
    words = f"conversation {name!r}: {why}"
    return Problem(409, words, headers=headers or None, field="conversation", code="conversation_locked")
