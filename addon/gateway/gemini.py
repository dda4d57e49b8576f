"""`POST /v1/gemini`: requests in Gemini's form; the proxy stores the history."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from addon.core.framing import sse
from addon.core.framing.documents import Document, encode, get
from addon.core.history.pairing import MissingResponses, Paired, UnknownResponses, pair
from addon.gateway.answers import AnswerCollector, calls_of, is_final, merge_documents, owed_answer
from addon.gateway.conversations import Conversation, new_response_id
from addon.gateway.engine import Caller
from addon.gateway.failures import NO_FINISH, TurnFailed, google_error, in_google_s_words
from addon.gateway.front_door import DoorRoute, FrontDoor
from addon.gateway.gemini_request import GeminiRequest, read
from addon.gateway.handover import Handover
from addon.gateway.streaming import Stream, answer_while_connected, ending_problem
from addon.web.context import ApiContext
from addon.web.problems import Problem

PATH = "/v1/gemini"
_ASKED = {"model": "gemini-3-flash", "input": "What is the weather in Tokyo?", "conversation": "trip"}


class GeminiRoutes(FrontDoor):
    def routes(self) -> list[BaseRoute]:
        words = "Ask Gemini, in its own form"
        return [DoorRoute("POST", PATH, self.ask, words, example=_ASKED, required=("model", "input"))]

    async def ask(self, api: ApiContext, request: Request) -> Response:
        """`input` is a text, Parts or Contents, including functionResponse parts. Answers contain functionCall parts.
        With `conversation` (or `previousResponseId`) the proxy stores the history; with `stream` the answer is SSE."""
        caller, body, handover = await self.receive(request, api, PATH)
        parsed = read(body)
        documents = self._documents(caller, parsed, handover)
        return await answer_while_connected(request, api, handover, lambda: self._answered(api, documents, parsed))

    async def _answered(self, api: ApiContext, documents: AsyncGenerator[Document], parsed: GeminiRequest) -> Response:
        try:
            first = await anext(documents)
        except TurnFailed as error:
            return in_google_s_words(error)
        if parsed.stream:
            return Stream(_events(first, documents, api.ending), api)
        async for _ in documents:
            pass  # the generator must run to its end, after its only document
        return Response(encode(first), media_type="application/json; charset=UTF-8")

    async def _documents(self, caller: Caller, parsed: GeminiRequest, handover: Handover) -> AsyncGenerator[Document]:
        """The answer's documents. The response is stored before the document with the finishReason is sent."""
        with self.conversations.alone(caller.session, parsed.conversation):
            if (earlier := await handover.earlier_answer()) is not None:
                yield earlier
                return
            conversation = await self.conversations.find(caller.session, parsed.conversation, parsed.previous)
            if conversation.added:
                words = (
                    "conversation: holds items of /v1/conversations that the model was not told of: ask /v1/responses"
                )
                raise Problem(400, words, field="conversation")
            paired = _paired(conversation, parsed)
            tools = conversation.settings.tools if parsed.tools is None else parsed.tools
            settings = conversation.settings._replace(tools=tools, one_by_one=None)
            response_id = new_response_id()

            async def keep(content: Document | None, answer: Document) -> None:
                contents = paired.added if content is None else [*paired.added, content]
                document = {"responseId": response_id}
                await self.conversations.add(
                    conversation,
                    response_id,
                    contents,
                    turn_id="" if content is None else handover.turn_id,
                    settings=settings,
                    calls=calls_of(content),
                    document=document,
                    answer=answer,
                    handover=handover,
                )

            if paired.owed:
                answer = owed_answer(paired.owed, parsed.model, response_id)
                await keep(None, answer)
                yield answer
                return
            request = {"contents": paired.contents, **parsed.more}
            if settings.tools is not None:
                request["tools"] = settings.tools
            collector, last = AnswerCollector(), list[Document]()
            async with self.engine.answer(
                caller, parsed.model, request, handover, turn_ids=conversation.turn_ids, stream=parsed.stream
            ) as documents:
                async for document in documents:
                    document = {**document, "responseId": response_id}
                    collector.take(document)
                    if collector.finished or not parsed.stream:
                        last.append(document)
                    else:
                        yield document
                if parsed.stream and not collector.finished:
                    raise TurnFailed(502, NO_FINISH)
                if collector.content is not None or collector.may_be_empty:
                    await keep(collector.content, merge_documents(collector.documents))
                for document in last:
                    yield document


async def _events(first: Document, rest: AsyncGenerator[Document], ending: asyncio.Event) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        yield sse.encode(encode(first))
        ended = is_final(first)
        try:
            async for document in rest:
                ended = ended or is_final(document)
                yield sse.encode(encode(document))
        except Exception as error:
            yield sse.encode(encode(google_error(error)[1]))
        except asyncio.CancelledError:
            if ended or not ending.is_set():
                raise
            yield sse.encode(encode(google_error(ending_problem())[1]))


def _paired(conversation: Conversation, parsed: GeminiRequest) -> Paired:
    """Raises Problem (400)."""
    try:
        return pair(conversation.contents, parsed.given)
    except UnknownResponses as error:
        named = ", ".join(repr(one.get("id") or one.get("name")) for one in error.responses)
        words = f"input: functionResponse for {named}, but the conversation has no open call with this id or name"
        raise Problem(400, words, field="input") from None
    except MissingResponses as error:
        calls = [get(part, "functionCall") for part in error.parts]
        named = ", ".join(
            f"{call.get('name')} ({call['id']})" if call.get("id") else str(call.get("name")) for call in calls
        )
        raise Problem(400, f"input: open calls need functionResponse parts first: {named}", field="input") from None
