"""Joins the response documents of all rounds of a loop into one answer for the client."""

from collections.abc import Sequence

from addon.core.answers.answer import FILLER
from addon.core.answers.usage import Usage
from addon.core.framing.documents import Document, as_list, content_of, objects, parts_of

_EMPTY: tuple[Document, ...] = ({}, {"text": ""})  # values that `Parts` leaves out
_ORDINARY = (None, "STOP", 1, "MAX_TOKENS", 2)


class JoinedRounds:
    """Joins the documents of several rounds into one answer, with one responseId and the usage for the client."""

    def __init__(self) -> None:
        self.usage = Usage()
        self._response_id: str | None = None
        self._meta: Document = {}

    @property
    def rounds(self) -> int:
        return len(self.usage.rounds)

    @property
    def meta(self) -> Document:
        """The fields of the upstream's responses that all responses of the answer share."""
        return {**self._meta, **({} if self._response_id is None else {"responseId": self._response_id})}

    def resume(self, usage: Sequence[Document], meta: Document) -> None:
        for counts in usage:
            self.begin_round()
            self.usage.record(counts)
        self.note(meta)

    def begin_round(self) -> None:
        self.usage.begin_round()

    def note(self, response: Document) -> None:
        """Record the metadata of a response, visible or not."""
        if isinstance(usage := response.get("usageMetadata"), dict):
            self.usage.record(usage)
        if "modelVersion" in response:
            self._meta["modelVersion"] = response["modelVersion"]
        if "responseId" in response:
            self._meta["responseId"] = response["responseId"]
            if self._response_id is None and isinstance(response["responseId"], str):
                self._response_id = response["responseId"]

    def part_of_answer(self, response: Document) -> Document:
        """Adapts a later round's response document to the answer."""
        if self.rounds == 1:
            return response
        joined = dict(response)
        if self._response_id is not None:
            joined["responseId"] = self._response_id
        ends = any(one.get("finishReason") is not None for one in objects(joined.get("candidates")))
        if ("usageMetadata" in joined or ends) and (usage := self.usage.visible()):
            joined["usageMetadata"] = usage
        return joined

    def filled(self, response: Document) -> Document:
        """The response with a part in each candidate, because a chat forgets a turn if one of its events has no part. A
        candidate that the model or the service broke off stays unchanged, so that the client sees the break."""
        candidates = as_list(response.get("candidates"))
        if len(candidates) == 1 and isinstance(candidates[0], dict) and not is_empty(candidates[0]):
            return response  # the usual case
        if not candidates and "promptFeedback" not in response:
            return {**response, "candidates": [{"content": {"parts": [FILLER], "role": "model"}, "index": 0}]}
        filled = [
            {**one, "content": {"role": "model", **content_of(one), "parts": [FILLER]}}
            if isinstance(one, dict) and is_empty(one) and one.get("finishReason") in _ORDINARY
            else one
            for one in candidates
        ]
        return {**response, "candidates": filled} if filled != candidates else response

    def merged(self, last: Document | None, before: Sequence[Document], parts: Sequence[Document] | None) -> Document:
        """One response for all rounds of an answer that is not a stream. `last`: the last round's response, None if all
        of it is hidden; the parts of earlier rounds come before its own. `parts`: the last round's parts, if it came in
        pieces."""
        response = self.made([], "STOP") if last is None else last
        if self.rounds == 1:
            return response
        response = self.filled(self.part_of_answer(response))
        candidates = [dict(one) for one in objects(response.get("candidates"))]
        if candidates and (before or parts is not None):
            content = content_of(candidates[0]) or {"role": "model"}
            own = [part for part in (parts_of(content) if parts is None else parts) if part not in _EMPTY]
            candidates[0]["content"] = {**content, "parts": [*before, *own] or [FILLER]}
        return {**response, "candidates": candidates}

    def made(self, parts: Sequence[Document], finish: str | None = None) -> Document:
        candidate: Document = {"content": {"parts": list(parts) or [FILLER], "role": "model"}, "index": 0}
        if finish is not None:
            candidate["finishReason"] = finish
        return self.part_of_answer({"candidates": [candidate], **self._meta})


def is_empty(candidate: Document) -> bool:
    """Whether no part of a candidate has content."""
    return not any(parts_of(content_of(candidate)))
