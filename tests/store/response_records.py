"""Responses in a store."""

from typing import Any

from store.base import Store, StoreError, UnknownResponse
from store.models import Document, Response
from tests.store.conftest import Clock


def a_response(response_id: str = "r1", previous: str | None = None, **fields: Any) -> Response:
    contents = [{"role": role, "parts": [{"text": f"{role} {response_id}"}]} for role in ("user", "model")]
    known = {"session": "one", "contents": contents, "document": {"id": response_id}, "created_at": 1.0}
    return Response(response_id=response_id, previous=previous, **{**known, **fields})


def a_part(signature: str = "s") -> Document:
    return {"functionCall": {"name": "f", "args": {"n": 2**80}}, "thoughtSignature": signature}


async def chat(store: Store, *ids: str, name: str | None = None, **fields: Any) -> None:
    """Add a thread of these responses, as the conversation `name`."""
    previous = None
    for response_id in ids:
        response = a_response(response_id, previous, conversation=name, **fields)
        await store.add_response(response, head=previous if name else None)
        previous = response_id


async def ids_of_history(store: Store, response_id: str, session: str = "one") -> list[str]:
    return [response.response_id for response in await store.history(session, response_id)]


async def there(store: Store, *ids: str, session: str = "one") -> str:
    """The ids of the stored responses, those without a document in brackets."""
    found = []
    for response_id in ids:
        try:
            response = await store.response(session, response_id)
        except UnknownResponse:
            continue
        found.append(f"({response_id})" if response.document is None else response_id)
    return " ".join(found)


async def take(store: Store, clock: Clock, step: tuple[Any, ...]) -> int | None:
    match step:
        case "add", response_id, previous, name, has_document:
            calls = {f"c{previous}": {"a": response_id}}
            response = a_response(response_id, previous, conversation=name, calls=calls)
            await store.add_response(response if has_document else response.model_copy(update={"document": None}))
        case "go on", response_id, name, has_document:
            head = await store.conversation("one", name)
            response = a_response(response_id, head, conversation=name)
            response = response if has_document else response.model_copy(update={"document": None})
            await store.add_response(response, head=head)
        case "delete", response_id:
            await store.delete_response("one", response_id)
        case "expire", seconds:
            clock.now += seconds
            return await store.expire()
    return None


async def outcome(store: Store, clock: Clock, step: tuple[Any, ...]) -> list[object]:
    """The step's result, and everything that can be read afterwards."""
    observed: list[object] = []
    try:
        observed.append(await take(store, clock, step))
    except (StoreError, ValueError) as error:
        observed.append(repr(error))
    ids = [f"r{number}" for number in range(6)]
    observed.append([await store.conversation("one", name) for name in ("a", "b")])
    observed.append(await store.given_calls("one", [f"c{response_id}" for response_id in (None, *ids)]))
    for response_id in ids:
        try:
            history = await store.history("one", response_id)
            assert history[-1] == await store.response("one", response_id)
            assert history[0].previous is None, "a history has its beginning"
            observed.append(history)
        except UnknownResponse:
            observed.append(None)
    return observed
