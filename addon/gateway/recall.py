"""Collects the stored calls that an OpenAI request refers to, and the open calls of its conversation."""

from collections.abc import Mapping, Sequence

from addon.core.dialects.responses.history import StoredCalls
from addon.core.dialects.responses.items import CallOutput, FunctionCall
from addon.core.dialects.responses.request import ResponsesRequest
from addon.core.framing.documents import Document, get, parts_of
from addon.core.history.calls import responses_in
from addon.core.history.steps import take_response
from addon.gateway.conversations import Conversation, ConversationSettings
from store.base import Store, UnknownResponse


async def stored_calls(store: Store, conversation: Conversation, parsed: ResponsesRequest) -> StoredCalls:
    """Raises StoreUnavailable."""
    given = await store.given_calls(conversation.session, parsed.call_ids)
    step: dict[str, Document] = {}
    last = parsed.input.items[-1] if parsed.input.items else None
    if isinstance(last, CallOutput) and last.call_id in given and last.call_id not in conversation.calls:
        step = await _given_one_by_one(store, conversation.session, given[last.call_id].response_id)
    responses = _responses(conversation)
    without = [call_id for call_id in conversation.calls if call_id not in responses]
    return StoredCalls(
        calls={**{call_id: one.part for call_id, one in given.items()}, **step, **conversation.calls},
        steps={call_id: one.response_id for call_id, one in given.items()},
        waiting=list(conversation.calls),
        responses=responses,
        hidden=without[1:] if conversation.settings.one_by_one else (),
        step=step,
        has_history=bool(conversation.contents),
        asked=_asked(conversation.contents) if without else (),
        answered=_answered(conversation, parsed, {call_id: one.part for call_id, one in given.items()}),
    )


async def _given_one_by_one(store: Store, session: str, response_id: str) -> dict[str, Document]:
    """The calls of a response, if the client receives them one by one; else empty."""
    try:
        response = await store.response(session, response_id)
    except UnknownResponse:
        return {}
    return response.calls if ConversationSettings(**(response.tools or {})).one_by_one else {}


def _responses(conversation: Conversation) -> dict[str, Document]:
    """The functionResponse Parts for calls of the last model turn, by the ids that the client knows."""
    left = responses_in(_behind_last_step(conversation.contents))
    found = {one["id"]: one for one in left if one.get("id") in conversation.calls}
    left = [one for one in left if one.get("id") not in found]
    responses: dict[str, Document] = {}
    for call_id, part in conversation.calls.items():
        call = get(part, "functionCall")
        if (response := found.get(call_id) or take_response(call, left)) is not None:
            kept = {key: value for key, value in response.items() if key != "id" or call.get("id")}
            responses[call_id] = {"functionResponse": kept}
    return responses


def _behind_last_step(contents: Sequence[Document]) -> Sequence[Document]:
    last = max((at for at, content in enumerate(contents) if content.get("role") == "model"), default=-1)
    return contents[last + 1 :]


def _asked(contents: Sequence[Document]) -> list[Document]:
    """The user's Parts before the last model turn."""
    for content in reversed(contents[: len(contents) - len(_behind_last_step(contents))]):
        parts = [part for part in parts_of(content) if get(part, "functionResponse") is None]
        if content.get("role") != "model" and parts:
            return parts
    return []


def _answered(
    conversation: Conversation, parsed: ResponsesRequest, given: Mapping[str, Document]
) -> dict[str, list[Document]]:
    """The history's functionResponses for outputs that the request repeats without their calls, by the calls' ids."""
    made = {item.call_id for item in parsed.input.items if isinstance(item, FunctionCall)} | conversation.calls.keys()
    repeated = {
        item.call_id: given[item.call_id]
        for item in parsed.input.items
        if isinstance(item, CallOutput) and item.call_id in given and item.call_id not in made
    }
    found: dict[str, list[Document]] = {call_id: [] for call_id in repeated}
    step: list[Document] = []
    for content in conversation.contents if repeated else ():
        if content.get("role") == "model":
            step = [part for part in parts_of(content) if isinstance(get(part, "functionCall"), dict)]
            continue
        responses = responses_in([content])
        for part in step:
            response = take_response(get(part, "functionCall"), responses)
            for call_id, call in repeated.items():
                if response is not None and part == call:
                    found[call_id].append(response)
    return {call_id: responses for call_id, responses in found.items() if responses}
