"""Signatures of calls for clients of chat completions that do not send them back.

Gemini's endpoint puts the signature of a call into a member that OpenAI's protocol does not have (`extra_content`), and
refuses the call without it. Most clients drop the member, so the door stores the signatures that it sends.
"""

import logging
from collections.abc import Iterator
from typing import Any

from addon.core.dialects.chat.contents import signature_member, signature_of
from addon.core.framing.documents import Document, Malformed, decode, get, objects
from addon.core.framing.sse import SseDecoder
from addon.core.history.rewriting import DUMMY_SIGNATURE
from addon.core.tools.tool_plan import generation, is_before
from addon.gateway.conversations import new_response_id
from store.base import Store, StoreUnavailable
from store.models import Response

logger = logging.getLogger("toolgraft")

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
        record = Response(
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
