"""What is known of the calls that a request of OpenAI's form speaks of, and of those that wait where it goes on."""

from collections.abc import Sequence

from addon.core.dialects.responses import ResponsesRequest, StoredCalls
from addon.core.dialects.responses.items import CallOutput
from addon.core.framing.documents import Document, get
from addon.core.history.calls import responses_in
from addon.core.history.steps import take_response
from addon.gateway.conversations import Kept, Thread
from store.base import Store, UnknownResponse


async def past_of(store: Store, thread: Thread, wanted: ResponsesRequest) -> StoredCalls:
    """Raises StoreUnavailable."""
    given = await store.given_calls(thread.session, wanted.call_ids)
    step: dict[str, Document] = {}
    last = wanted.input.items[-1] if wanted.input.items else None
    if isinstance(last, CallOutput) and last.call_id in given and last.call_id not in thread.calls:
        step = await _given_one_by_one(store, thread.session, given[last.call_id].response_id)
    answers = _answers(thread)
    unanswered = [call_id for call_id in thread.calls if call_id not in answers]
    return StoredCalls(
        calls={**{call_id: one.part for call_id, one in given.items()}, **step, **thread.calls},
        steps={call_id: one.response_id for call_id, one in given.items()},
        waiting=list(thread.calls),
        answers=answers,
        hidden=unanswered[1:] if thread.kept.one_by_one else (),
        step=step,
        has_history=bool(thread.contents),
    )


async def _given_one_by_one(store: Store, session: str, response_id: str) -> dict[str, Document]:
    """The calls of a response whose step is given out one by one; else none."""
    try:
        response = await store.response(session, response_id)
    except UnknownResponse:
        return {}
    return response.calls if Kept(**(response.tools or {})).one_by_one else {}


def _answers(thread: Thread) -> dict[str, Document]:
    """The functionResponse Parts that calls of the last model turn have by now, by the ids that the client knows."""
    left = responses_in(_behind_last_step(thread.contents))
    found = {one["id"]: one for one in left if one.get("id") in thread.calls}
    left = [one for one in left if one.get("id") not in found]
    answers: dict[str, Document] = {}
    for call_id, part in thread.calls.items():
        call = get(part, "functionCall")
        if (response := found.get(call_id) or take_response(call, left)) is not None:
            kept = {key: value for key, value in response.items() if key != "id" or call.get("id")}
            answers[call_id] = {"functionResponse": kept}
    return answers


def _behind_last_step(contents: Sequence[Document]) -> Sequence[Document]:
    last = max((at for at, content in enumerate(contents) if content.get("role") == "model"), default=-1)
    return contents[last + 1 :]
