"""The turns of `/v1/responses`: each continues a history, asks Gemini, and is stored before its last event."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from addon.core.dialects.responses.answer import Translator, events_of
from addon.core.dialects.responses.conversations import read_compaction, stored_items
from addon.core.dialects.responses.history import too_long, truncated
from addon.core.dialects.responses.options import conversation_tools
from addon.core.dialects.responses.request import ResponsesRequest, read_leniently, read_request
from addon.core.framing.documents import Document
from addon.core.history.pairing import join_responses
from addon.gateway.conversations import (
    Conversation,
    Conversations,
    ConversationSettings,
    LocalHistory,
    new_response_id,
)
from addon.gateway.downloads import Download, with_files
from addon.gateway.engine import Caller, Engine, is_final
from addon.gateway.failures import NO_FINISH, TurnFailed, google_error, openai_error
from addon.gateway.handover import Handover
from addon.gateway.items import INPUT, ItemIds, resolved
from addon.gateway.recall import stored_calls
from addon.gateway.sealing import Sealing
from addon.gateway.streaming import ending_problem

type Events = list[Document]

_COUNTED = ("contents", "tools", "toolConfig", "systemInstruction")
"""The members of a request that count as tokens."""
_MOST_CUTS = 4
"""How often a request that is too long is shortened and sent again."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """One request in progress. `request`: the Gemini request. `contents`: added to the history before the answer.
    `owed`: calls without an output, by their ids; unless empty, nothing is sent to Gemini. `step`: all calls of their
    step, if the request contains the step."""

    conversation: Conversation
    parsed: ResponsesRequest
    settings: ConversationSettings
    request: Document
    contents: list[Document]
    owed: dict[str, Document]
    step: dict[str, Document]
    translator: Translator
    handover: Handover
    local: LocalHistory | None
    new_id: ItemIds

    def continued(self, contents: list[Document], calls: dict[str, Document]) -> Conversation:
        """The history with this turn, which adds these Contents. `calls`: the model's, in the turn."""
        before = self.conversation
        count = sum(content.get("role") == "model" for content in contents)
        turn_ids = [*before.turn_ids, *[""] * (count - 1), *([self.handover.turn_id] if count else [])]
        return Conversation(
            before.session,
            contents=[*before.contents, *contents],
            turn_ids=turn_ids,
            calls=calls if count else before.calls,
            settings=self.settings,
        )


class _NotStored(Exception):
    """A response could not be stored: the stream ends with these events."""

    def __init__(self, events: Events) -> None:
        super().__init__()
        self.events = events


class ResponseTurns:
    """`download`: fetches files that a request names by URLs; None: not supported."""

    def __init__(self, engine: Engine, conversations: Conversations, download: Download | None) -> None:
        self.engine = engine
        self.conversations = conversations
        self.store = conversations.store
        self._download = download

    async def read(self, session: str, body: Any, *, lenient: bool = False) -> tuple[ResponsesRequest, list[str]]:
        """The request, and the positions of its ignored members. Raises Invalid, Problem."""
        given, whole = await self._whole(session, body)
        unseal = Sealing(self.store, session).unseal
        request, ignored = read_leniently(whole, unseal) if lenient else (read_request(whole, unseal), [])
        # Lists of items show the original URLs.
        return dataclasses.replace(request, raw_input=given[INPUT]), ignored

    async def read_compaction(self, session: str, body: Any) -> ResponsesRequest:
        """Raises Invalid, Problem."""
        _, whole = await self._whole(session, body)
        return read_compaction(whole, Sealing(self.store, session).unseal)

    async def _whole(self, session: str, body: Any) -> tuple[Any, Any]:
        """The body with the items that it refers to, and the same with the contents of files."""
        max_body = self.engine.settings.max_body
        given = await resolved(self.store, session, body, max_body)
        return given, await with_files(given, self._download, max_body)

    async def events(
        self,
        caller: Caller,
        parsed: ResponsesRequest,
        handover: Handover,
        ending: asyncio.Event,
        local: LocalHistory | None = None,
    ) -> AsyncGenerator[Events]:
        """The events of a response. The first comes when the request was accepted. The response is stored before the
        last event, which contains the whole response. Without a stream, failures are raised (TurnFailed). `local`: the
        history of the request's connection, if it is a WebSocket."""
        async with self.conversations.alone(caller.session, parsed.conversation) as lock:
            if (earlier := await handover.earlier_answer()) is not None:
                await lock.release()
                yield events_of(earlier)
                return
            conversation = local.find(parsed.previous_response_id) if local is not None else None
            if conversation is None:
                conversation = await self.conversations.find(
                    caller.session, parsed.conversation, parsed.previous_response_id
                )
            parsed = self._with_added(conversation, parsed)
            turn = await self._turn(conversation, parsed, handover, local)
            yield turn.translator.start()
            finished = not parsed.stream
            try:
                if turn.owed:
                    last = [*turn.translator.repeat_calls(turn.owed), *await self._end(turn)]
                    await lock.release()
                    yield last
                    return
                async with self._answer(caller, turn) as documents:
                    async for document in documents:
                        finished = finished or is_final(document)
                        yield turn.translator.feed(document)
                    if not finished:
                        raise TurnFailed(502, NO_FINISH)
                    last = await self._end(turn)
                    await lock.release()
                    yield last
            except _NotStored as error:
                yield error.events
            except Exception as error:
                if not parsed.stream:
                    raise
                yield turn.translator.fail(*google_error(error))
            except asyncio.CancelledError:
                if not (parsed.stream and ending.is_set() and turn.translator.status == "in_progress"):
                    raise
                yield turn.translator.fail(*google_error(ending_problem()))

    async def count_tokens(self, caller: Caller, parsed: ResponsesRequest, handover: Handover) -> int:
        """The tokens that a request would send to Gemini. Raises Invalid, Problem, TurnFailed."""
        conversation = await self.conversations.find(caller.session, parsed.conversation, parsed.previous_response_id)
        turn = await self._turn(conversation, self._with_added(conversation, parsed), handover, None)
        members = {name: turn.request[name] for name in _COUNTED if name in turn.request}
        return await self.engine.count_tokens(caller, parsed.model, members, turn_ids=conversation.turn_ids)

    def _with_added(self, conversation: Conversation, parsed: ResponsesRequest) -> ResponsesRequest:
        """The request, after the items that clients added to its conversation. Raises Invalid."""
        if not conversation.added:
            return parsed
        unseal = Sealing(self.store, conversation.session).unseal
        return parsed.behind(conversation.added, "conversation.items", unseal)

    @asynccontextmanager
    async def _answer(self, caller: Caller, turn: _Turn) -> AsyncGenerator[AsyncIterator[Document]]:
        """As `Engine.answer`. With `truncation: auto`, a request that is too long for Gemini is sent again without its
        oldest turns."""
        contents, turn_ids = turn.request["contents"], list(turn.conversation.turn_ids)
        for left in range(_MOST_CUTS if turn.parsed.truncates else 0, -1, -1):
            accepted = False
            try:
                async with self.engine.answer(
                    caller,
                    turn.parsed.model,
                    {**turn.request, "contents": contents},
                    turn.handover,
                    turn_ids=turn_ids,
                    stream=turn.parsed.stream,
                    max_tool_calls=turn.parsed.max_tool_calls,
                ) as documents:
                    first = await anext(documents, None) if left else None
                    accepted = True
                    yield documents if first is None else _chained(first, documents)
                    return
            except TurnFailed as error:
                fitting = too_long(error.message) if left and not accepted else None
                shorter = None if fitting is None else truncated(contents, fitting)
                if shorter is None:
                    raise
            gone = contents[: len(contents) - len(shorter)]
            del turn_ids[: sum(content.get("role") == "model" for content in gone)]
            contents = shorter
            turn.handover.begin_over()

    async def _turn(
        self, conversation: Conversation, parsed: ResponsesRequest, handover: Handover, local: LocalHistory | None
    ) -> _Turn:
        """Raises Invalid."""
        past = await stored_calls(self.store, conversation, parsed)
        added = parsed.add_to(past)
        one_by_one = parsed.parallel is False
        if added.missing and parsed.parallel is None:
            one_by_one = bool(conversation.settings.one_by_one or past.step)
        settings = conversation.settings._replace(
            tools=conversation.settings.tools if parsed.tools is None else parsed.tools,
            system=[*(conversation.settings.system or ()), *parsed.input.system] or None,
            one_by_one=one_by_one or None,
        )
        request: Document = {"contents": join_responses([*conversation.contents, *added.contents])}
        members = {
            "tools": settings.tools,
            "toolConfig": parsed.tool_config(settings.tools or ()),
            "systemInstruction": parsed.system_instruction(conversation.settings.system or ()),
            "generationConfig": parsed.generation_config or None,
            "serviceTier": parsed.service_tier,
        }
        response_id = new_response_id()
        new_id = ItemIds(response_id)
        translator = Translator(
            parsed,
            response_id,
            new_id=new_id,
            now=self.store.clock,
            tools=conversation_tools(settings.tools) if parsed.tools is None and settings.tools else None,
            one_by_one=one_by_one,
            seal=partial(Sealing(self.store, conversation.session).seal, purpose="signatures"),
        )
        return _Turn(
            conversation,
            parsed,
            settings,
            request | {name: value for name, value in members.items() if value is not None},
            added.contents,
            {call_id: past.calls[call_id] for call_id in added.missing},
            dict(past.step),
            translator,
            handover,
            local,
            new_id,
        )

    async def _end(self, turn: _Turn) -> Events:
        """Store the response and return the last events. Raises _NotStored, for a stream."""
        translator = turn.translator
        events = translator.end()
        try:
            await self._keep(turn)
        except Exception as error:
            if not turn.parsed.stream:
                raise
            body = openai_error(error)[1]["error"]
            number = events[0]["sequence_number"]
            last = {"type": "error", "sequence_number": number, **{k: body[k] for k in ("code", "message", "param")}}
            raise _NotStored([last]) from error
        return events

    async def _keep(self, turn: _Turn) -> None:
        translator, parsed, conversation = turn.translator, turn.parsed, turn.conversation
        content = translator.content
        if translator.status == "failed" or (content is None and not turn.owed and translator.is_filtered):
            return
        answer = translator.document()
        document: Document | None = None
        calls = turn.step if turn.owed else translator.calls
        added = contents = turn.contents if content is None else [*turn.contents, content]
        clients_own = not parsed.store and parsed.conversation is None  # the client keeps its own history
        if clients_own:  # store only the calls, for their signatures
            conversation, contents = Conversation(conversation.session), []
        elif parsed.store:
            contents = [*conversation.unstored, *contents]
            document = answer | {INPUT: stored_items(parsed.raw_input, turn.contents, turn.new_id)}
        if not clients_own or (calls and not turn.owed):
            await self.conversations.add(
                conversation,
                answer["id"],
                contents,
                turn_id="" if content is None else turn.handover.turn_id,
                settings=turn.settings,
                calls=calls,
                document=document,
                answer=answer if document is None else None,
                handover=turn.handover,
            )
        if clients_own and turn.local is not None:
            turn.local.keep(answer["id"], turn.continued(added, calls))


async def _chained(first: Document, rest: AsyncIterator[Document]) -> AsyncIterator[Document]:
    yield first
    async for document in rest:
        yield document
