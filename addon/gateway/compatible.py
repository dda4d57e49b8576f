"""`/v1/chat/completions`, `/v1/embeddings` and `/v1/models`, which Gemini's OpenAI-compatible endpoint serves.

Chat completions are rewritten like those of any client of that endpoint. The other two pass through.
"""

import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import xxhash
from cachetools import TTLCache
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from addon.core.dialects.chat_requests import signature_member, signature_of
from addon.core.framing.documents import Document, Malformed, decode, encode, get, objects
from addon.core.framing.streams import SseDecoder
from addon.core.history.rewriting import DUMMY_SIGNATURE
from addon.core.model_names import generation, is_before
from addon.gateway.conversations import Conversations, new_response_id
from addon.gateway.engine import OWN_HEADERS, Caller, Engine, Sent, check_model
from addon.gateway.failures import TurnFailed
from addon.gateway.front_door import DoorRoute, FrontDoor
from addon.gateway.handover import Handover
from addon.gateway.streaming import Stream, answer_while_connected
from addon.loop.runner import Head
from addon.loop.upstream import Address
from addon.setting_types import ModelAlias
from addon.surfaces.registry import match_path
from addon.web.api import ApiContext
from addon.web.problems import Problem
from store.base import Store, StoreUnavailable
from store.models import Response as Record

logger = logging.getLogger("toolgraft")

CHAT, EMBEDDINGS, MODELS = "/v1/chat/completions", "/v1/embeddings", "/v1/models"
PREFIXES = ("/v1/chat", EMBEDDINGS, MODELS, "/v1/conversations")
"""The paths below which refusals are in OpenAI's form."""
_ENDPOINT = "/v1beta/openai"
_CHAT: Document = {
    "model": "gemini-3-flash",
    "messages": [{"role": "user", "content": "What is the weather in Tokyo?"}],
}
_EMBED: Document = {"model": "gemini-embedding-001", "input": ["The weather in Tokyo"]}
_LISTS, _LIST_TTL = 64, 300.0
"""The number of cached lists of models, one for each key, and their lifetime in seconds."""


class CompatibleRoutes(FrontDoor):
    def __init__(self, engine: Engine, conversations: Conversations, key: str) -> None:
        super().__init__(engine, conversations, key)
        self._models: TTLCache[tuple[bytes, str], bytes] = TTLCache(_LISTS, _LIST_TTL, timer=time.monotonic)

    def routes(self) -> list[BaseRoute]:
        return [
            DoorRoute(
                "POST",
                CHAT,
                self.complete,
                "Ask Gemini with chat completions",
                example=_CHAT,
                required=("model", "messages"),
            ),
            DoorRoute("POST", EMBEDDINGS, self.embed, "Embed texts", example=_EMBED, required=("model", "input")),
            DoorRoute("GET", MODELS, self.list_models, "List the models"),
            DoorRoute("GET", f"{MODELS}/{{model:path}}", self.show_model, "Show a model"),
        ]

    async def complete(self, api: ApiContext, request: Request) -> Response:
        """A request of Gemini's OpenAI-compatible endpoint, streamed or not. The proxy runs the session's tools;
        calls of the client's own functions are returned as `tool_calls`."""
        caller, body, handover = await self.receive(request, api, CHAT)
        model = _model_of(body)
        return await answer_while_connected(
            request, api, handover, lambda: self._completed(api, caller, model, body, handover)
        )

    async def embed(self, api: ApiContext, request: Request) -> Response:
        """Passed on to Gemini's OpenAI-compatible endpoint."""
        caller, body, handover = await self.receive(request, api, EMBEDDINGS)
        _model_of(body)
        return await answer_while_connected(
            request, api, handover, lambda: self._passed_on(caller, "POST", "embeddings", encode(body))
        )

    async def list_models(self, api: ApiContext, request: Request) -> Response:
        """Gemini's list for this key, at most five minutes old, and the aliases of `graft_model_aliases`."""
        aliases = api.settings.model_aliases
        return await self._described(api, request, "models", lambda found: _with_aliases(found, aliases))

    async def show_model(self, api: ApiContext, request: Request, model: str) -> Response:
        own = check_model(api.settings.model(model))
        path = f"models/{quote(own.removeprefix('models/'))}"
        return await self._described(
            api, request, path, lambda found: found if own == model else _renamed(found, model)
        )

    async def _completed(self, api: ApiContext, caller: Caller, model: str, body: Any, handover: Handover) -> Response:
        streams = body.get("stream") is True
        target = match_path("POST", f"{_ENDPOINT}/chat/completions")
        assert target is not None
        body = await with_signatures(self.store, caller.session, body)
        sent = Sent(target, self._address(caller, "POST", "chat/completions"), encode(body))
        answer = _relayed(self.engine, caller, model, sent, handover, streams=streams)
        head = await anext(answer)
        assert isinstance(head, Head)
        kind = dict(head.headers).get(b"content-type", b"application/json").decode("latin-1")
        keeper = SignatureKeeper(self.store, caller.session)
        if head.status == 200 and kind.startswith("text/event-stream"):
            return Stream(keeper.keep(_bytes(answer)), api)
        whole = b"".join([piece async for piece in _bytes(answer)])
        await keeper.take(whole, is_stream=False)
        return _checked(head.status, whole, kind)

    async def _described(
        self, api: ApiContext, request: Request, path: str, show: Callable[[bytes], bytes]
    ) -> Response:
        """`show` converts the endpoint's body."""
        caller, _, handover = await self.receive(request, api, f"/v1/{path}", has_body=False)
        key = xxhash.xxh3_128_digest(caller.key.encode()), path
        if (known := self._models.get(key)) is not None:
            return Response(show(known), media_type="application/json")

        def keep(answer: bytes) -> bytes:
            self._models[key] = answer
            return show(answer)

        return await answer_while_connected(
            request, api, handover, lambda: self._passed_on(caller, "GET", path, b"", keep)
        )

    async def _passed_on(
        self, caller: Caller, method: str, path: str, body: bytes, show: Callable[[bytes], bytes] = lambda body: body
    ) -> Response:
        """`show` converts the endpoint's body."""
        status, answer = await self.engine.fetch(caller, self._address(caller, method, path), body)
        return _checked(status, answer, "application/json", show)

    def _address(self, caller: Caller, method: str, path: str) -> Address:
        headers = [*OWN_HEADERS, (b"authorization", f"Bearer {caller.key}".encode())]
        if method == "POST":
            headers.append((b"content-type", b"application/json"))
        return Address(method, f"{self.engine.base_url}{_ENDPOINT}/{path}", headers)


async def _relayed(
    engine: Engine, caller: Caller, model: str, sent: Sent, handover: Handover, *, streams: bool
) -> AsyncGenerator[Head | bytes]:
    async with engine.relay(caller, model, sent, handover, stream=streams) as output:
        async for out in output:
            yield out


async def _bytes(answer: AsyncGenerator[Head | bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(answer):
        async for out in answer:
            assert isinstance(out, bytes)
            yield out


def _checked(status: int, body: bytes, media_type: str, show: Callable[[bytes], bytes] = lambda body: body) -> Response:
    """Raises TurnFailed for an error."""
    if status != 200:
        raise TurnFailed.from_body(status, body)
    return Response(show(body), media_type=media_type)


def _with_aliases(body: bytes, aliases: Sequence[ModelAlias]) -> bytes:
    """A list of models, followed by the aliases."""
    listed = _object(body) if aliases else {}
    if not aliases or listed is None:
        return body
    known = {str(one.get("id")).removeprefix("models/"): one for one in objects(get(listed, "data"))}
    usual = {"object": "model", "owned_by": "google"}
    named = [known.get(alias.model.removeprefix("models/"), usual) | {"id": alias.name} for alias in aliases]
    return encode({**listed, "data": [*objects(get(listed, "data")), *named]})


def _renamed(body: bytes, name: str) -> bytes:
    """A model under another name."""
    model = _object(body)
    return body if model is None else encode({**model, "id": name})


def _object(body: bytes) -> Document | None:
    try:
        document = decode(body)
    except Malformed:
        return None
    return document if isinstance(document, dict) else None


def _model_of(body: Any) -> str:
    """Raises Problem (400)."""
    if not isinstance(body, dict):
        raise Problem(400, "the body must be a JSON object")
    return check_model(body.get("model"))


# --- signatures of calls for clients that do not send them back ------------------------------------------------
#
# Gemini's endpoint puts the signature of a call into a member that OpenAI's protocol does not have (`extra_content`),
# and refuses the call without it. Most clients drop the member, so the front door stores the signatures that it sends.

_GEMINI_3 = (3, 0)


async def with_signatures(store: Store, session: str, body: Document) -> Document:
    """The body of a request with the signatures that its calls had. The first call of a step that never had one gets
    the documented dummy. Raises StoreUnavailable."""
    messages = body.get("messages")
    steps = [list(objects(message.get("tool_calls"))) for message in objects(messages)]
    without = [call for calls in steps for call in calls if signature_of(call) is None]
    if not isinstance(messages, list) or not without:
        return body
    ids = {call_id for call in without if isinstance(call_id := call.get("id"), str) and call_id}
    known = await store.given_calls(session, ids) if ids else {}
    needs_one = not is_before(generation(str(body.get("model"))), _GEMINI_3)

    def signed(call: Document, *, is_first: bool) -> Document:
        if signature_of(call) is not None:
            return call
        given = known.get(str(call.get("id")))
        signature = get(given.part, "thoughtSignature") if given is not None else None
        if signature is None:
            signature = DUMMY_SIGNATURE if is_first and needs_one else None
        return call if signature is None else {**call, **signature_member(signature)}

    def whole(message: Any) -> Any:
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            return message
        return {**message, "tool_calls": [signed(call, is_first=not at) for at, call in enumerate(calls)]}

    return {**body, "messages": [whole(message) for message in messages]}


class SignatureKeeper:
    """Stores the signatures in an answer. Give it each piece before the client gets the piece."""

    def __init__(self, store: Store, session: str) -> None:
        self._store = store
        self._session = session
        self._decoder = SseDecoder()
        self._heads: dict[object, Document] = {}  # the first delta of each call, by its index

    async def keep(self, pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """The pieces of a stream, each after its signatures are stored."""
        async with aclosing(pieces):
            async for piece in pieces:
                await self.take(piece, is_stream=True)
                yield piece

    async def take(self, piece: bytes, *, is_stream: bool) -> None:
        """Never raises: a call without its signature gets the dummy, or is refused later."""
        calls: dict[str, Document] = {}
        if is_stream:
            for event in self._decoder.feed(piece):
                calls |= self._signed(event.data or b"", "delta")
        else:
            calls = self._signed(piece, "message")
        if not calls:
            return
        record = Record(
            response_id=new_response_id(), session=self._session, calls=calls, created_at=self._store.clock()
        )
        try:
            await self._store.add_response(record, head=None, undelivered=None)
            await self._store.sync()
        except StoreUnavailable as error:
            logger.warning("signatures of a chat completion are not stored: %s", error)

    def _signed(self, data: bytes, member: str) -> dict[str, Document]:
        """The calls with a signature in a document, by their ids."""
        if b'"tool_calls"' not in data:
            return {}
        try:
            document = decode(data)
        except Malformed:
            return {}
        found = {}
        for call in self._calls(document, member):
            signature, call_id = signature_of(call), call.get("id")
            if signature is not None and isinstance(call_id, str) and call_id:
                found[call_id] = {"functionCall": _called(call), "thoughtSignature": signature}
        return found

    def _calls(self, document: Any, member: str) -> Iterator[Document]:
        for choice in objects(document.get("choices") if isinstance(document, dict) else None):
            message = choice.get(member)
            for call in objects(message.get("tool_calls") if isinstance(message, dict) else None):
                if member == "delta":  # the signature may follow the id in a later delta
                    head = self._heads.setdefault(call.get("index"), call)
                    if call.get("id") and call["id"] != head.get("id"):
                        head = self._heads[call.get("index")] = call
                    call = {**head, **{key: value for key, value in call.items() if value}}
                yield call


def _called(call: Document) -> Document:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    try:
        args = decode(str(function.get("arguments") or "{}").encode())
    except Malformed:
        args = {}
    return {"name": str(function.get("name") or ""), "args": args if isinstance(args, dict) else {}}
