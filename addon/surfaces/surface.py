"""A surface: the requests that belong to it (`Surface`), and the format of their bodies (`Wire`).

`registry` matches requests. `Wire` reads the requests and answers of one exchange as Gemini documents, and writes them:
in Gemini's own format, with its envelope and framing. A surface with another format has a subclass that converts each
message to and from a Gemini document, so the ledger, the rewriting and the loop exist only once. Pure: bytes and
documents in, bytes and documents out.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from addon.core.framing import replies
from addon.core.framing.documents import Document, decode, encode, get, members
from addon.core.framing.streams import SEPARATOR, ArrayItem, SseEvent, sse_event
from addon.core.history.request import Piece, Prefix, Request, assemble, parse
from addon.surfaces.incoming import Framing, Operation, Target


class Wire:
    """One exchange. Its methods are called in the order of their definition, and may keep state for the next.

    `native`: the messages are Gemini's, so answers can be inspected while they pass. Answers of other formats are
    always rewritten, by a loop. `target`: the request; its framing is final once the request has been read, if the URL
    does not determine it. `events_sent` counts the written events. `dropped`: after `write`, the parts that this format
    cannot express, for a warning.

    `keeps_history`: the service stores the history, and the request names it. The name must be mapped even if the
    request gets no grafted tools, and each call that the service waits for needs a response. `keeps_answer`: the next
    request may name this answer, and the service then waits for responses to its calls.
    """

    native = True
    dropped = ""
    keeps_history = False
    keeps_answer = False
    done = b""
    """The data of the event that ends a stream, if it is not JSON."""
    call_markers: tuple[bytes, ...] = (b'"function',)  # functionCall or function_call

    def __init__(self, target: Target) -> None:
        self.target = target
        self.events_sent = 0

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
        """The request in Gemini's form, with `contents`, `tools`, `toolConfig`, `generationConfig` and `model`. Also
        reads the rewritten body, before it goes upstream. Raises Malformed."""
        return parse(body, self.path(body), known)

    def write(self, request: Request, replaced: Mapping[str, bytes | None], contents: Sequence[Piece] | None) -> bytes:
        """The body for upstream, of a request that `read` returned. Arguments as in `request.assemble`."""
        if self._counts_contents_alone(request) and replaced.get("tools") is not None:
            return self._with_tools_counted(assemble(request, {}, contents), replaced)
        return assemble(request, replaced, contents)

    def _counts_contents_alone(self, request: Request) -> bool:
        """Whether this is a countTokens request of the Developer API in the form with `contents` only."""
        if self.target.operation is not Operation.COUNT or not self.target.resource or request.outer_names:
            return False
        return any(member.name == "contents" for member in request.members)

    def _with_tools_counted(self, body: bytes, replaced: Mapping[str, bytes | None]) -> bytes:
        """The countTokens request in the form that counts tools too (`generateContentRequest`). This form names the
        model, and allows no `contents` beside it."""
        inner = {"model": encode(self.target.resource)}
        outer: list[bytes] = []
        for member in members(body):
            if member.name in ("contents", "model"):
                inner[member.name] = body[member.start : member.end]
            else:
                outer.append(body[member.key : member.end])
        inner |= {name: value for name, value in replaced.items() if value is not None}
        fields = b",".join(encode(name) + b":" + value for name, value in inner.items())
        return b"{" + b",".join([*outer, b'"generateContentRequest":{' + fields + b"}"]) + b"}"

    def next_request(
        self, request: Request, added: Sequence[Document], mode: str | None, token: str | None = None
    ) -> bytes:
        """The next request of a loop: the last request read, with `added` after its own Contents. `added`: all Contents
        since the loop began. `mode`: the function calling mode from now on ("NONE", "AUTO", or None for no change).
        `token`: repeat the previous request to get the rest of its answer."""
        pieces: list[Piece] = [span for turn in request.history.turns for span in turn.spans]
        pieces += [encode(content) for content in added]
        replaced = mode_set(request, mode)
        new_token = encode(token) if token is not None else None
        if new_token != request.value("continuationToken"):
            replaced["continuationToken"] = new_token
        return self.write(request, replaced, pieces if added else None)

    def instruction(self, request: Request) -> bytes:
        """The system instruction of a request, unchanged; b"" for none."""
        return request.value("systemInstruction") or b""

    def project_and_chat(self, request: Request) -> tuple[str, str]:
        """The project named in the request body, and the client's name for the chat; "" for none."""
        return "", ""

    # --- answers ----------------------------------------------------------------------------------------------

    @property
    def is_wrapped(self) -> bool:
        """Whether responses have an envelope. The only envelope is an object with the key `response`."""
        return bool(self.target.response_path)

    def resume(self, rounds: int, visible: Sequence[Document]) -> None:
        """Continue an answer that broke off after `rounds` rounds. `visible`: its parts, sent to the client again."""

    def set_framing(self, framing: Framing) -> None:
        """Set the framing of the client's answer to that of the first upstream answer."""
        if framing is not self.target.framing:
            self.target = dataclasses.replace(self.target, framing=framing)

    def for_another_answer(self) -> Wire:
        """A Wire that reads another answer to the same request."""
        return type(self)(self.target)

    def unwrap(self, document: object) -> Document | None:
        """The Gemini response in a document (a whole answer or one event); None if there is none, as in an error.
        Raises Malformed if the document may hold a call that cannot be read."""
        for key in self.target.response_path:
            document = document.get(key) if isinstance(document, dict) else None
        if isinstance(document, dict) and ("candidates" in document or "error" not in document):
            return document
        return None

    @property
    def is_within_call(self) -> bool:
        """Whether the stream is within a call, so that an unreadable event may be a piece of it."""
        return False

    def unfinished_response(self) -> Document | None:
        """The response that was still incomplete at the end of a stream, if any."""
        return None

    def passthrough_event(self, item: SseEvent | ArrayItem, document: object = None) -> bytes:
        """An event that needs no change: its original bytes, if they fit the client's stream. `document`: if
        decoded."""
        framing = self.target.framing
        if isinstance(item, SseEvent):
            fits = framing is Framing.SSE and item.raw.endswith((b"\n\n", b"\r\n\r\n"))
        else:
            fits = framing is Framing.ARRAY and (self.events_sent == 0) == item.prefix.lstrip().startswith(b"[")
        if not fits:
            return self._framed((item.data or b"").replace(b"\r", b" ").replace(b"\n", b" "))
        self.events_sent += 1
        return item.raw

    def event(self, visible: Document, raw: Document | None = None) -> bytes:
        """A visible response as an event of the stream. `raw`: the document that contained it; None: the proxy
        made it."""
        return self._framed(encode(self._wrap(visible, raw)))

    def end(self) -> bytes:
        """The bytes after the last event."""
        if self.target.framing is Framing.SSE:
            return b""
        return b"]" if self.events_sent else b"[]"

    def whole_body(self, visible: Document, raw: Document | None = None) -> bytes:
        """A visible response as the body of an answer without a stream. `raw`: as in `event`."""
        return encode(self._wrap(visible, raw))

    def reply(self, answer: Document) -> tuple[str, bytes]:
        """The content type and the body of a complete answer made by the proxy."""
        if self.target.framing is Framing.JSON:
            return replies.content_type("json"), self.whole_body(answer)
        return replies.content_type(self.target.framing.value), self.event(answer) + self.end()

    # --- errors -----------------------------------------------------------------------------------------------

    def error(self, document: Document) -> bytes:
        """The body of an error answer, before any stream has begun. `document`: the error in Google's form."""
        wraps = self.target.surface == "codeassist" and self.target.operation is Operation.STREAM
        return replies.framed(document, "array" if wraps else "json")

    def error_event(self, document: Document) -> bytes:
        """The event that ends a stream with an error. `document`: the error in Google's form."""
        return self._framed(encode(document)) + self.end()

    # --- bytes ------------------------------------------------------------------------------------------------

    def _framed(self, body: bytes) -> bytes:
        self.events_sent += 1
        if self.target.framing is Framing.SSE:
            return sse_event(body)
        return (b"[" if self.events_sent == 1 else SEPARATOR) + body

    def _wrap(self, visible: Document, raw: Document | None) -> Document:
        """The response in its envelope. `raw`: the document that contained the response, if any."""
        for key in reversed(self.target.response_path):
            visible = {**(raw or {}), key: visible}
        return visible


def mode_set(request: Request, mode: str | None) -> dict[str, bytes | None]:
    """The replacements that set a request's function calling mode; {} for None, or for a mode that needs no change."""
    if mode is None or request.value("tools") is None:
        return {}
    config = decode(request.value("toolConfig") or b"{}")
    calling = dict(get(config, "functionCallingConfig") or {})
    if mode != "NONE" and str(calling.get("mode", "")).upper() != "ANY":
        return {}
    others = _without(config, "functionCallingConfig", "function_calling_config")
    calling = _without(calling, "allowedFunctionNames", "allowed_function_names")
    return {"toolConfig": encode({**others, "functionCallingConfig": {**calling, "mode": mode}})}


def _without(document: Document, *names: str) -> Document:
    return {key: value for key, value in document.items() if key not in names}


@dataclass(frozen=True, slots=True)
class Surface:
    """One family of endpoints.

    `host` matches a whole host name in lower case, without a port. `path` matches a whole path without its query. Its
    named groups are `operation` (if missing, the field `operation` applies) and, if the URL has them, `model` and
    `resource`.
    """

    name: str
    host: re.Pattern[str]
    path: re.Pattern[str]
    operation: Operation = Operation.CACHE
    request_path: tuple[str, ...] = ()
    response_path: tuple[str, ...] = ()
    home: Callable[[str], str | None] | None = None
    """Returns the host for a path, for any operation, if the path identifies this surface."""
    wire: Callable[[Target], Wire] | None = None
    """The Wire of a surface with another format than Gemini's."""
    method: str = "POST"
    """The HTTP method; GET for a WebSocket, whose frames are rewritten."""


METHOD = r":(?P<operation>generateContent|streamGenerateContent|countTokens)"
"""The end of a path that names an operation, without `batchGenerateContent` and similar operations."""
