"""The content view *Gemini* of mitmproxy, mitmweb and mitmdump: shows a request to a model, or its answer, as a
conversation.

mitmproxy calls it only when it shows a body.
"""

import json

from mitmproxy import contentviews, http
from mitmproxy.contentviews import Contentview, Metadata

from addon.core.conversation_view import answer_lines, request_lines
from addon.core.framing.documents import Document, Malformed, decode, get
from addon.core.security.escaping import printable
from addon.graft.upstream_answer import Decoder
from addon.surfaces import Target, match_path

_PRIORITY = 2
"""mitmproxy's own view of JSON has 1."""

_SURFACES = ("developer", "vertex", "firebase", "codeassist")
"""Surfaces with Gemini's messages, possibly in an envelope."""


class GeminiContentview(Contentview):
    """Bodies without a conversation are shown as JSON."""

    @property
    def name(self) -> str:
        return "Gemini"

    def render_priority(self, data: bytes, metadata: Metadata) -> float:
        return _PRIORITY if data and _target_of(metadata) is not None else -1

    def prettify(self, data: bytes, metadata: Metadata) -> str:
        target = _target_of(metadata)
        if target is None:
            raise ValueError("no request to Gemini")
        try:
            if isinstance(metadata.http_message, http.Response):
                lines = answer_lines(_answer_documents(data, metadata.content_type or "", target.response_path))
            else:
                document = _unwrap(decode(data), target.request_path)
                lines = request_lines(get(document, "generateContentRequest") or document)
            return "\n".join(lines)
        except (Malformed, ValueError):
            return printable(json.dumps(json.loads(data), indent=2, ensure_ascii=False), lines=True)


def _target_of(metadata: Metadata) -> Target | None:
    """The target of a message's request. Recordings have true hosts; flows of a reverse proxy may have any."""
    flow = metadata.flow
    if not isinstance(flow, http.HTTPFlow) or not isinstance(metadata.http_message, http.Message):
        return None
    target = match_path(flow.request.method, flow.request.path)
    return target if target is not None and target.surface in _SURFACES else None


def _answer_documents(data: bytes, content_type: str, path: tuple[str, ...]) -> list[Document]:
    """The response documents of an answer in any framing."""
    decoder = Decoder(content_type)
    items = [item.data for item in (*decoder.feed(data), *decoder.flush()) if item.data is not None]
    return [_unwrap(decode(one), path) for one in items or [data]]


def _unwrap(document: object, path: tuple[str, ...]) -> Document:
    """The document inside an envelope. An error has no envelope."""
    if not isinstance(document, dict):
        raise ValueError("no object")
    for key in path:
        inner = document.get(key)
        if not isinstance(inner, dict):
            break
        document = inner
    return document


def add_view() -> None:
    """Register the view with mitmproxy, whose registry is shared by all proxies of a process."""
    contentviews.add(GeminiContentview())
