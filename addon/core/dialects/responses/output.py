"""The growing items of a response, and the event for each change. Pure.

Only the last item is open: further text of its kind extends it, anything else closes it. So the items do not depend on
how the answer was cut into pieces.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from addon.core.framing.documents import Document

type Status = Literal["completed", "incomplete"]


class Items:
    """`items`: the response's items, the open one in its initial state. `emit` gets the type and the members of each
    event. `new_id` makes an id from a prefix such as `msg`. `of_thoughts`: further members of a complete item of
    thoughts."""

    def __init__(
        self, emit: Callable[[str, Document], None], new_id: Callable[[str], str], of_thoughts: Document | None = None
    ) -> None:
        self.of_thoughts = of_thoughts or {}
        self.items: list[Document] = []
        self._emit = emit
        self._new_id = new_id
        self._open: Literal["message", "reasoning"] | None = None
        self._texts: list[str] = []
        self._logprobs: list[Document] = []
        self._annotations: list[Document] = []

    def text(self, delta: str, logprobs: Sequence[Document] = ()) -> None:
        """Add text of the answer. `logprobs`: of its tokens, as the parts of a message have them."""
        if self._open != "message":
            self.close()
            self._begin("message", {"id": self._new_id("msg"), "role": "assistant", "content": []})
            self._emit_for_item("response.content_part.added", content_index=0, part=_output_text(""))
        self._texts.append(delta)
        self._logprobs += logprobs
        self._emit_for_item("response.output_text.delta", content_index=0, delta=delta, logprobs=_of_event(logprobs))

    def thought(self, delta: str) -> None:
        if self._open != "reasoning":
            self.close()
            self._begin("reasoning", {"id": self._new_id("rs"), "summary": []})
            self._emit_for_item("response.reasoning_summary_part.added", summary_index=0, part=_summary_text(""))
        self._texts.append(delta)
        self._emit_for_item("response.reasoning_summary_text.delta", summary_index=0, delta=delta)

    def call(self, call_id: str, name: str, arguments: str) -> None:
        self.close()
        item: Document = {"id": self._new_id("fc"), "type": "function_call", "call_id": call_id, "name": name}
        self._add(item | {"arguments": "", "status": "in_progress"})
        self._emit_for_item("response.function_call_arguments.delta", delta=arguments)
        self._emit_for_item("response.function_call_arguments.done", arguments=arguments)
        self._finish(item | {"arguments": arguments, "status": "completed"})

    @property
    def open_text(self) -> str | None:
        """The text of the open message, if any."""
        return "".join(self._texts) if self._open == "message" else None

    def annotate(self, annotations: Sequence[Document]) -> None:
        """Add annotations to the open message."""
        for annotation in annotations:
            self._emit_for_item(
                "response.output_text.annotation.added",
                content_index=0,
                annotation_index=len(self._annotations),
                annotation=annotation,
            )
            self._annotations.append(annotation)

    def search(self, action: Document) -> None:
        """Add a complete web search. `action`: its queries, and its sources if requested."""
        self.close()
        item: Document = {"id": self._new_id("ws"), "type": "web_search_call", "action": action}
        self._add(item | {"status": "in_progress"})
        for state in ("in_progress", "searching", "completed"):
            self._emit_for_item(f"response.web_search_call.{state}")
        self._finish(item | {"status": "completed"})

    def carried(self, sealed: str) -> None:
        """Add a reasoning item without text, for the client to carry."""
        self.close()
        item = {"type": "reasoning", "id": self._new_id("rs"), "summary": [], "encrypted_content": sealed}
        self._add(item | {"status": "in_progress"})
        self._finish(item | {"status": "completed"})

    def close(self, status: Status = "completed") -> None:
        """End the open item, if any."""
        kind, text, logprobs = self._open, "".join(self._texts), self._logprobs
        annotations = self._annotations
        self._open, self._texts, self._logprobs, self._annotations = None, [], [], []
        if kind == "message":
            part = _output_text(text, logprobs, annotations)
            self._emit_for_item("response.output_text.done", content_index=0, text=text, logprobs=_of_event(logprobs))
            self._emit_for_item("response.content_part.done", content_index=0, part=part)
            self._finish(self.items[-1] | {"content": [part], "status": status})
        elif kind == "reasoning":
            summary = _summary_text(text)
            self._emit_for_item("response.reasoning_summary_text.done", summary_index=0, text=text)
            self._emit_for_item("response.reasoning_summary_part.done", summary_index=0, part=summary)
            self._finish(self.items[-1] | self.of_thoughts | {"summary": [summary], "status": status})

    def _begin(self, kind: Literal["message", "reasoning"], item: Document) -> None:
        self._open = kind
        self._add({"type": kind, **item, "status": "in_progress"})

    def _add(self, item: Document) -> None:
        self.items.append(item)
        self._emit("response.output_item.added", {"output_index": len(self.items) - 1, "item": item})

    def _finish(self, item: Document) -> None:
        self.items[-1] = item
        self._emit("response.output_item.done", {"output_index": len(self.items) - 1, "item": item})

    def _emit_for_item(self, kind: str, **members: object) -> None:
        """An event about the last item."""
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        self._emit(kind, place | members)


def _output_text(text: str, logprobs: Sequence[Document] = (), annotations: Sequence[Document] = ()) -> Document:
    return {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": list(logprobs)}


def _of_event(logprobs: Sequence[Document]) -> list[Document]:
    """Without the bytes of tokens, which events do not have."""
    return [
        {**_without_bytes(one), "top_logprobs": [_without_bytes(other) for other in one["top_logprobs"]]}
        for one in logprobs
    ]


def _without_bytes(token: Document) -> Document:
    return {key: value for key, value in token.items() if key != "bytes"}


def _summary_text(text: str) -> Document:
    return {"type": "summary_text", "text": text}
