"""Collects the answer of a turn: the model's Content, as a Gemini client would store it in its history."""

from collections.abc import Sequence

from addon.core.answers.answer import FILLER, Candidate
from addon.core.framing.documents import Document, get, index_of, objects, parts_of
from addon.core.framing.replies import text_answer


def is_final(document: Document) -> bool:
    """Whether a response document has a finishReason, or says that the prompt was blocked."""
    feedback = get(document, "promptFeedback")
    if isinstance(feedback, dict) and get(feedback, "blockReason") is not None:
        return True
    candidates = objects(document.get("candidates"))
    return any(get(one, "finishReason") is not None for one in candidates if not index_of(one))


_UNFILTERED = ("STOP", "MAX_TOKENS")


class AnswerCollector:
    """Takes all response documents of an answer. `finished`: the last one has arrived. `may_be_empty`: it ended
    without being filtered, so it counts as a turn even without parts."""

    def __init__(self) -> None:
        self.finished = False
        self.may_be_empty = False
        self.documents: list[Document] = []
        self._candidate = Candidate(0, "")
        self._has_parts = False

    def take(self, document: Document) -> None:
        self.documents.append(document)
        self.finished = self.finished or is_final(document)
        for candidate in objects(document.get("candidates")):
            if index_of(candidate):
                continue
            self.may_be_empty = self.may_be_empty or get(candidate, "finishReason") in _UNFILTERED
            content = candidate.get("content")
            for part in parts_of(content) if isinstance(content, dict) else ():
                self._candidate.add_true(part)
                self._has_parts = True

    @property
    def content(self) -> Document | None:
        """The model's Content; None if the answer has no part that a history can contain. If all parts are thoughts, a
        filler stands for them: the turn may have calls that the caller does not see."""
        parts = self._candidate.true_parts or ([FILLER] if self._has_parts and self.may_be_empty else [])
        return {"role": "model", "parts": parts} if parts else None


def merge_documents(documents: Sequence[Document]) -> Document:
    """Merges the response documents of a stream: parts are concatenated, other members have their last value."""
    if len(documents) == 1:
        return documents[0]
    whole: Document = {}
    candidates: dict[int, Document] = {}
    parts: dict[int, list[Document]] = {}
    for document in documents:
        whole |= document
        for one in objects(document.get("candidates")):
            index = index_of(one)
            candidates[index] = {**candidates.get(index, {}), **one}
            content = one.get("content")
            parts.setdefault(index, []).extend(parts_of(content) if isinstance(content, dict) else ())
    for index, candidate in candidates.items():
        if parts[index]:
            candidate["content"] = {"role": "model", "parts": parts[index]}
    return whole | ({"candidates": [candidates[index] for index in sorted(candidates)]} if candidates else {})


def owed_answer(parts: list[Document], model: str, response_id: str) -> Document:
    """A GenerateContentResponse with the calls that have no response yet, made without a request upstream."""
    answer = text_answer("", model.rpartition("/")[2], response_id)
    answer["candidates"][0]["content"]["parts"] = parts
    return answer


def calls_of(content: Document | None) -> dict[str, Document]:
    """The functionCall Parts of a Content by the model's ids. Calls without an id are left out."""
    calls: dict[str, Document] = {}
    for part in parts_of(content) if content is not None else ():
        call = get(part, "functionCall")
        if isinstance(call, dict) and isinstance(call_id := call.get("id"), str):
            calls[call_id] = part
    return calls
