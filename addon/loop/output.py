"""What the client of a loop is sent, as Gemini's response documents: one answer over all rounds."""

from collections.abc import Sequence

from addon.core.answer import FILLER
from addon.core.documents import Document, listed, parts_of

_ORDINARY = (None, "STOP", 1, "MAX_TOKENS", 2)


class Splice:
    """Makes the documents of several rounds one answer: one responseId, usage summed over the rounds."""

    def __init__(self) -> None:
        self.rounds = 0
        self._response_id: str | None = None
        self._meta: Document = {}
        self._before: Document = {}
        self._usage: Document = {}

    def begin_round(self) -> None:
        self.rounds += 1
        self._before = summed(self._before, self._usage)
        self._usage = {}

    def note(self, response: Document) -> None:
        """Take in what a response says of itself, whether it is shown or not."""
        if isinstance(usage := response.get("usageMetadata"), dict):
            self._usage = usage
        self._meta |= {k: response[k] for k in ("modelVersion", "responseId") if k in response}
        if self._response_id is None and isinstance(response.get("responseId"), str):
            self._response_id = response["responseId"]

    def joined(self, response: Document) -> Document:
        """A response document of a later round as part of the whole answer."""
        if self.rounds == 1:
            return response
        joined = dict(response)
        if self._response_id is not None:
            joined["responseId"] = self._response_id
        if "usageMetadata" in joined or self._ends(joined):
            joined["usageMetadata"] = summed(self._before, self._usage)
        return joined

    def filled(self, response: Document) -> Document:
        """The response with a part in each candidate: a chat forgets a turn that has an event without one. One that
        the model or the service broke off stays as it is, and so counts as that with the client."""
        candidates = listed(response.get("candidates"))
        if not candidates and "promptFeedback" not in response:
            return {**response, "candidates": [{"content": {"parts": [FILLER], "role": "model"}, "index": 0}]}
        filled = [
            {**one, "content": {"role": "model", **_content(one), "parts": [FILLER]}}
            if isinstance(one, dict) and is_empty(one) and one.get("finishReason") in _ORDINARY
            else one
            for one in candidates
        ]
        return {**response, "candidates": filled} if filled != candidates else response

    def _ends(self, response: Document) -> bool:
        return any(c.get("finishReason") is not None for c in listed(response.get("candidates")) if isinstance(c, dict))

    def made(self, parts: Sequence[Document], finish: str | None = None) -> Document:
        """A response document of the proxy's own."""
        candidate: Document = {"content": {"parts": list(parts) or [FILLER], "role": "model"}, "index": 0}
        if finish is not None:
            candidate["finishReason"] = finish
        return self.joined({"candidates": [candidate], **self._meta})


def is_empty(candidate: Document) -> bool:
    """Whether a candidate has no part that holds anything."""
    return not any(parts_of(_content(candidate)))


def _content(candidate: Document) -> Document:
    content = candidate.get("content")
    return content if isinstance(content, dict) else {}


def summed(one: Document, other: Document) -> Document:
    """Token counts added; lists by modality (or tool) joined; what is no number is the later one's."""
    result = dict(one)
    for key, value in other.items():
        held = result.get(key)
        if isinstance(value, int) and isinstance(held, int) and not isinstance(value, bool):
            result[key] = held + value
        elif isinstance(value, list) and isinstance(held, list):
            by_kind = {_kind(item): item for item in held if isinstance(item, dict)}
            for item in value:
                if isinstance(item, dict):
                    by_kind[_kind(item)] = summed(by_kind.get(_kind(item), {}), item)
            result[key] = list(by_kind.values())
        else:
            result[key] = value
    return result


def _kind(count: Document) -> str:
    """What a count in a list is of: a modality, or a type of tool."""
    return str(count.get("modality", count.get("type")))
