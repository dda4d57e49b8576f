"""Function responses and the calls they answer, where a client sends only what is new of its conversation.

A step of which some calls are answered and some are not is *open*: what came is kept behind it, and it goes upstream
once the last answer is there, in one turn and in the order of its calls, as Gemini wants it.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from addon.core.calls import calls_in, has_user_content, responses_in
from addon.core.documents import Document, get, parts_of
from addon.core.history import DUMMY_SIGNATURE
from addon.core.steps import response_to
from addon.core.tools import generation, is_before


class Paired(NamedTuple):
    """`contents` go upstream, unless calls are still `owed` an answer (their Parts, as the model said them). `added` is
    what the history grows by."""

    contents: list[Document]
    added: list[Document]
    owed: list[Document]


class UnknownResponses(ValueError):
    """Function responses that answer no call which is open."""

    def __init__(self, responses: Sequence[Document]) -> None:
        super().__init__("no call that is open has these answers")
        self.responses = responses


class MissingResponses(ValueError):
    """Something else was said while calls (their Parts) are still without an answer."""

    def __init__(self, parts: Sequence[Document]) -> None:
        super().__init__("calls are still without an answer")
        self.parts = parts


def pair(history: Sequence[Document], given: Sequence[Document]) -> Paired:
    """The Contents that a client adds to its history, which may hold model turns of its own. Raises Unknown, Owed."""
    turns = [at for at, content in enumerate(given) if _is_model(content)]
    if not turns:
        return _answered(history, given)
    first, last = turns[0], turns[-1] + 1
    before = _answered(history, given[:first]) if first else Paired(list(history), [], [])
    if before.owed:
        raise MissingResponses(before.owed)
    after = _answered([*before.contents, *given[first:last]], given[last:])
    return Paired(after.contents, [*before.added, *given[first:last], *after.added], after.owed)


def _answered(history: Sequence[Document], given: Sequence[Document]) -> Paired:
    """What is added are turns of the user's alone."""
    step, answered = _last_step(history)
    left = responses_in(answered)
    owed = [part for part in step if response_to(get(part, "functionCall"), left) is None]
    new = responses_in(given)
    taken = {id(part): response_to(get(part, "functionCall"), new) for part in owed}
    if new:
        raise UnknownResponses(new)
    others = [part for content in given for part in parts_of(content) if get(part, "functionResponse") is None]
    still = [part for part in owed if taken[id(part)] is None]
    if still and (others or len(still) == len(owed)):
        raise MissingResponses(still)
    answers = [_named(part, answer) for part in owed if (answer := taken[id(part)]) is not None]
    added = list(given)
    if answers:
        added = [{"role": "user", "parts": [*answers, *others]}]
    return Paired(join_responses([*history, *added]), added, still)


def join_responses(contents: Sequence[Document]) -> list[Document]:
    """The Contents with the answers of each step in one Content, in the order of its calls."""
    tidied: list[Document] = []
    at = 0
    while at < len(contents):
        step = list(takewhile(_is_model, contents[at:]))
        answered = list(takewhile(lambda content: not _is_model(content), contents[at + len(step) :]))
        at += len(step) + len(answered)
        tidied += step
        tidied += _joined(step, answered) if sum(bool(responses_in([one])) for one in answered) > 1 else answered
    return tidied


def with_dummy_signatures(contents: Sequence[Document], model: str) -> list[Document]:
    """The Contents with the documented stand-in on the first call of each step that has no signature, as one that an
    older model made, or whose first call was not the client's. From Gemini 3.5 on all steps need one, from 3 on those
    of the current turn."""
    version, first = generation(model), 0
    if is_before(version, (3, 0)):
        return list(contents)
    if is_before(version, (3, 5)):
        said = (at for at, content in enumerate(contents) if not _is_model(content) and has_user_content([content]))
        first = max(said, default=0)
    told: list[Document] = []
    begun = False  # a step: its calls may be in several Contents
    for at, content in enumerate(contents):
        begins = _is_model(content) and not begun and bool(calls_in([content]))
        told.append(_signed(content) if begins and at >= first else content)
        begun = _is_model(content) and (begun or begins)
    return told


def _signed(content: Document) -> Document:
    parts = parts_of(content)
    at = next(at for at, part in enumerate(parts) if isinstance(get(part, "functionCall"), dict))
    if get(parts[at], "thoughtSignature") is not None:
        return content
    return {**content, "parts": [*parts[:at], {**parts[at], "thoughtSignature": DUMMY_SIGNATURE}, *parts[at + 1 :]]}


def _joined(step: Sequence[Document], answered: Sequence[Document]) -> list[Document]:
    calls = calls_in(step)
    # one that answers the whole step holds what came before it one by one
    whole = next((one for one in reversed(answered) if len(responses_in([one])) >= len(calls)), None)
    left = responses_in(answered if whole is None else [whole])
    found = [response_to(call, left) for call in calls]
    answers = [{"functionResponse": one} for one in [*found, *left] if one is not None]
    others = [part for one in answered for part in parts_of(one) if get(part, "functionResponse") is None]
    return [{"role": "user", "parts": [*answers, *others]}]


def _last_step(history: Sequence[Document]) -> tuple[list[Document], Sequence[Document]]:
    """The functionCall Parts of the last model turn, and what stands behind it."""
    end = len(history)
    while end and not _is_model(history[end - 1]):
        end -= 1
    start = end
    while start and _is_model(history[start - 1]):
        start -= 1
    parts = [part for content in history[start:end] for part in parts_of(content)]
    return [part for part in parts if isinstance(get(part, "functionCall"), dict)], history[end:]


def _named(part: Document, answer: Document) -> Document:
    """An answer under the name and the id of its call."""
    call = get(part, "functionCall")
    head = {key: call[key] for key in ("id", "name") if key in call}
    return {"functionResponse": {**answer, **head}}


def _is_model(content: Document) -> bool:
    return content.get("role") == "model"
