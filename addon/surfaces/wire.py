"""The language of a surface: the requests and answers of one exchange, read as Gemini's documents and written again.

`Wire` is Gemini's own language, in its envelope and its framing. A surface that speaks another has a subclass of its
own, which says for each message what it is as a Gemini document: so the ledger, the rewriting and the loop are there
once. Pure: bytes and documents in, bytes and documents out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from addon.core import replies
from addon.core.documents import Document, decode, encode, get, members
from addon.core.json_array import SEPARATOR, ArrayItem
from addon.core.request import Piece, Prefix, Request, assemble, parse
from addon.core.sse import SseEvent
from addon.core.sse import encode as sse_event
from addon.surfaces.base import Framing, Operation, Target


class Wire:
    """One exchange. It is asked in the order of the methods here, and may keep what it needs of one for the next.

    `native`: what passes is Gemini's, so that answers may be looked at on their way. Those of other languages are
    always written anew, by a loop. `target` is what the request is; where the URL does not tell how the answer is
    framed, it is known once the request was read. `sent` counts the events that were written. `dropped` says, once a
    request is written, what of it has no form in this language, for a warning.

    `keeps_history`: the service keeps what was said, and the request names it. Whatever else the request may do, what
    it names has to be put right, and each call that the service waits for needs a response.
    """

    native = True
    dropped = ""
    keeps_history = False
    done = b""
    """The data of the event that ends a stream, where that is no JSON."""
    call_markers: tuple[bytes, ...] = (b'"function',)  # Call, or _call

    def __init__(self, target: Target) -> None:
        self.target = target
        self.sent = 0

    # --- requests ---------------------------------------------------------------------------------------------

    def path(self, body: bytes) -> tuple[str, ...]:
        """The keys that lead to the request object inside a body."""
        path = self.target.request_path
        if (
            self.target.operation is Operation.COUNT
            and not path
            and b"enerate" in body
            and any(member.name == "generateContentRequest" for member in members(body))
        ):
            path = ("generateContentRequest",)
        return path

    def read(self, body: bytes, known: Prefix | None = None) -> Request:
        """A request as Gemini's: `contents`, `tools`, `toolConfig`, `generationConfig` and `model` are where they are
        in Gemini's own, whatever body they came in. Read again for what goes upstream, once that is written. Raises
        Malformed."""
        return parse(body, self.path(body), known)

    def write(self, request: Request, replaced: Mapping[str, bytes | None], contents: Sequence[Piece] | None) -> bytes:
        """The request that goes upstream: as `core.request.assemble` has it, for a request that was read here."""
        if self._counts_contents_alone(request) and replaced.get("tools") is not None:
            return self._with_tools_counted(assemble(request, {}, contents), replaced)
        return assemble(request, replaced, contents)

    def _counts_contents_alone(self, request: Request) -> bool:
        """Whether this is a countTokens request of the Developer API in the form that knows nothing but `contents`."""
        if self.target.operation is not Operation.COUNT or not self.target.resource or request.around:
            return False
        return any(member.name == "contents" for member in request.members)

    def _with_tools_counted(self, body: bytes, replaced: Mapping[str, bytes | None]) -> bytes:
        """A countTokens request in the form that counts tools as well: it names the model, and has no `contents`
        beside it."""
        inner = {"model": encode(self.target.resource)}
        outer: list[bytes] = []
        for member in members(body):
            if member.name in ("contents", "model"):
                inner[member.name] = body[member.start : member.end]
            else:
                outer.append(body[member.key : member.end])
        inner |= {name: value for name, value in replaced.items() if value is not None}
        held = b",".join(encode(name) + b":" + value for name, value in inner.items())
        return b"{" + b",".join([*outer, b'"generateContentRequest":{' + held + b"}"]) + b"}"

    def next_request(
        self, request: Request, added: Sequence[Document], mode: str | None, token: str | None = None
    ) -> bytes:
        """A request of a loop: the one that was read last with these Contents behind its own, all that were added
        since the loop began. `mode` is the function calling mode from now on: "NONE", "AUTO", or None to leave it.
        `token`: the request before is sent once more, for the rest of its answer."""
        pieces: list[Piece] = [span for turn in request.history.turns for span in turn.spans]
        pieces += [encode(content) for content in added]
        replaced = mode_set(request, mode)
        said = encode(token) if token is not None else None
        if said != request.value("continuationToken"):
            replaced["continuationToken"] = said
        return self.write(request, replaced, pieces if added else None)

    def instruction(self, request: Request) -> bytes:
        """The system instruction of a request, as it came; b"" for none."""
        return request.value("systemInstruction") or b""

    def chat(self, request: Request) -> tuple[str, str]:
        """The project that the body of a request names, and what the client calls the chat; "" for none."""
        return "", ""

    # --- answers ----------------------------------------------------------------------------------------------

    @property
    def is_wrapped(self) -> bool:
        """Whether a response lies in an envelope: under `response`, the only one that there is."""
        return bool(self.target.response_path)

    def resume(self, rounds: int, visible: Sequence[Document]) -> None:
        """The answer goes on behind so many rounds of one that broke off, of which the client is to see these parts."""

    def frame(self, framing: Framing) -> None:
        """The client's answer is framed like this from now on: as the first of the upstream's is."""
        if framing is not self.target.framing:
            self.target = dataclasses.replace(self.target, framing=framing)

    def unwrap(self, document: object) -> Document | None:
        """The Gemini response that a document of an answer holds, whole or one event's; None where there is none, as in
        an error. Raises Malformed where it may hold a call that cannot be read."""
        for key in self.target.response_path:
            document = document.get(key) if isinstance(document, dict) else None
        if isinstance(document, dict) and ("candidates" in document or "error" not in document):
            return document
        return None

    def left(self) -> Document | None:
        """The response that the end of a stream left incomplete."""
        return None

    def passthrough_event(self, item: SseEvent | ArrayItem, document: object = None) -> bytes:
        """An event of a stream that needs no change, as the bytes that it is where they fit in their new place.
        `document`: what it holds, where it was read."""
        framing = self.target.framing
        if isinstance(item, SseEvent):
            fits = framing is Framing.SSE and item.raw.endswith((b"\n\n", b"\r\n\r\n"))
        else:
            fits = framing is Framing.ARRAY and (self.sent == 0) == item.prefix.lstrip().startswith(b"[")
        if not fits:
            return self._framed((item.data or b"").replace(b"\r", b" ").replace(b"\n", b" "))
        self.sent += 1
        return item.raw

    def event(self, seen: Document, came: Document | None = None) -> bytes:
        """A response as it is to be seen, as an event of the stream. `came` is the document that it was in; None for
        one that the proxy makes itself."""
        return self._framed(encode(self._outside(seen, came)))

    def end(self) -> bytes:
        """What stands behind the last event."""
        if self.target.framing is Framing.SSE:
            return b""
        return b"]" if self.sent else b"[]"

    def whole(self, seen: Document, came: Document | None = None) -> bytes:
        """A response as it is to be seen, as the body of an answer that is no stream."""
        return encode(self._outside(seen, came))

    def reply(self, answer: Document) -> tuple[str, bytes]:
        """An answer of the proxy's own, complete: its content type and its body."""
        if self.target.framing is Framing.JSON:
            return replies.content_type("json"), self.whole(answer)
        return replies.content_type(self.target.framing.value), self.event(answer) + self.end()

    # --- errors -----------------------------------------------------------------------------------------------

    def error(self, document: Document) -> bytes:
        """The body that tells of an error (`document`: in Google's shape) where no stream has begun."""
        wraps = self.target.surface == "codeassist" and self.target.operation is Operation.STREAM
        return replies.framed(document, "array" if wraps else "json")

    def error_event(self, document: Document) -> bytes:
        """The event that tells of an error in a stream, and ends it."""
        return self._framed(encode(document)) + self.end()

    # --- bytes ------------------------------------------------------------------------------------------------

    def _framed(self, body: bytes) -> bytes:
        self.sent += 1
        if self.target.framing is Framing.SSE:
            return sse_event(body)
        return (b"[" if self.sent == 1 else SEPARATOR) + body

    def _outside(self, seen: Document, came: Document | None) -> Document:
        """The response where it lay in the document that it came in."""
        for key in reversed(self.target.response_path):
            seen = {**(came or {}), key: seen}
        return seen


def mode_set(request: Request, mode: str | None) -> dict[str, bytes | None]:
    """What is to be replaced in a request for its function calling mode to be this one."""
    if mode is None or request.value("tools") is None:
        return {}
    config = decode(request.value("toolConfig") or b"{}")
    calling = dict(get(config, "functionCallingConfig") or {})
    if mode != "NONE" and str(calling.get("mode", "")).upper() != "ANY":
        return {}
    kept = _without(config, "functionCallingConfig", "function_calling_config")
    calling = _without(calling, "allowedFunctionNames", "allowed_function_names")
    return {"toolConfig": encode({**kept, "functionCallingConfig": {**calling, "mode": mode}})}


def _without(document: Document, *names: str) -> Document:
    return {key: value for key, value in document.items() if key not in names}
