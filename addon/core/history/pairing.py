"""Pairs function responses with their calls, for clients that send only the new part of a conversation.

A step with both answered and unanswered calls is *open*: the answers so far are kept after it. Once the last answer has
arrived, all go upstream in one turn, in the order of the calls, as Gemini requires.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from addon.core.framing.documents import Document, get, parts_of
from addon.core.history.calls import calls_in, has_user_content, responses_in
from addon.core.history.rewriting import DUMMY_SIGNATURE
from addon.core.history.steps import take_response
from addon.core.model_names import generation, is_before


class Paired(NamedTuple):
    """`contents` go upstream unless calls are `owed` an answer (their Parts, as the model sent them). `added`: the new
    Contents of the history."""

    contents: list[Document]
    added: list[Document]
    owed: list[Document]


class UnknownResponses(ValueError):
    """Function responses that answer no open call."""

    def __init__(self, responses: Sequence[Document]) -> None:
        super().__init__("these responses answer no open call")
        self.responses = responses


class MissingResponses(ValueError):
    """Other content arrived while calls (given as their Parts) have no answer."""

    def __init__(self, parts: Sequence[Document]) -> None:
        super().__init__("calls have no answer yet")
        self.parts = parts


def pair(history: Sequence[Document], sent: Sequence[Document]) -> Paired:
    """Add a client's Contents, with or without model turns, to its history. Raises UnknownResponses,
    MissingResponses."""
    turns = [at for at, content in enumerate(sent) if _is_model(content)]
    if not turns:
        return _add_user_turns(history, sent)
    first, last = turns[0], turns[-1] + 1
    before = _add_user_turns(history, sent[:first]) if first else Paired(list(history), [], [])
    if before.owed:
        raise MissingResponses(before.owed)
    after = _add_user_turns([*before.contents, *sent[first:last]], sent[last:])
    return Paired(after.contents, [*before.added, *sent[first:last], *after.added], after.owed)


def _add_user_turns(history: Sequence[Document], sent: Sequence[Document]) -> Paired:
    step, answered = _last_step(history)
    unmatched = responses_in(answered)
    owed = [part for part in step if take_response(get(part, "functionCall"), unmatched) is None]
    responses = responses_in(sent)
    matched = {id(part): take_response(get(part, "functionCall"), responses) for part in owed}
    if responses:
        raise UnknownResponses(responses)
    others = [part for content in sent for part in parts_of(content) if get(part, "functionResponse") is None]
    missing = [part for part in owed if matched[id(part)] is None]
    if missing and (others or len(missing) == len(owed)):
        raise MissingResponses(missing)
    answers = [_named(part, answer) for part in owed if (answer := matched[id(part)]) is not None]
    added = list(sent)
    if answers:
        added = [{"role": "user", "parts": [*answers, *others]}]
    return Paired(join_responses([*history, *added]), added, missing)


def join_responses(contents: Sequence[Document]) -> list[Document]:
    """The Contents with the responses of each step in one Content, in the order of its calls."""
    joined: list[Document] = []
    at = 0
    while at < len(contents):
        step = list(takewhile(_is_model, contents[at:]))
        answered = list(takewhile(lambda content: not _is_model(content), contents[at + len(step) :]))
        at += len(step) + len(answered)
        joined += step
        joined += _join_step(step, answered) if sum(bool(responses_in([one])) for one in answered) > 1 else answered
    return joined


def with_dummy_signatures(contents: Sequence[Document], model: str) -> list[Document]:
    """The Contents with the documented dummy signature on the first call of each step that has none. Such a step comes
    from an older model, or its first call was not the client's. From Gemini 3.5 on all steps need a signature; from 3
    on, those of the current turn."""
    version, first = generation(model), 0
    if is_before(version, (3, 0)):
        return list(contents)
    if is_before(version, (3, 5)):
        user_turns = (
            at for at, content in enumerate(contents) if not _is_model(content) and has_user_content([content])
        )
        first = max(user_turns, default=0)
    result: list[Document] = []
    in_step = False  # a step: its calls may be in several Contents
    for at, content in enumerate(contents):
        begins = _is_model(content) and not in_step and bool(calls_in([content]))
        result.append(_signed(content) if begins and at >= first else content)
        in_step = _is_model(content) and (in_step or begins)
    return result


def _signed(content: Document) -> Document:
    parts = parts_of(content)
    at = next(at for at, part in enumerate(parts) if isinstance(get(part, "functionCall"), dict))
    if get(parts[at], "thoughtSignature") is not None:
        return content
    return {**content, "parts": [*parts[:at], {**parts[at], "thoughtSignature": DUMMY_SIGNATURE}, *parts[at + 1 :]]}


def _join_step(step: Sequence[Document], answered: Sequence[Document]) -> list[Document]:
    calls = calls_in(step)
    # a Content that answers the whole step repeats the responses sent one by one before it
    whole = next((one for one in reversed(answered) if len(responses_in([one])) >= len(calls)), None)
    unmatched = responses_in(answered if whole is None else [whole])
    found = [take_response(call, unmatched) for call in calls]
    answers = [{"functionResponse": one} for one in [*found, *unmatched] if one is not None]
    others = [part for one in answered for part in parts_of(one) if get(part, "functionResponse") is None]
    return [{"role": "user", "parts": [*answers, *others]}]


def _last_step(history: Sequence[Document]) -> tuple[list[Document], Sequence[Document]]:
    """The functionCall Parts of the last model turn, and the Contents after it."""
    end = len(history)
    while end and not _is_model(history[end - 1]):
        end -= 1
    start = end
    while start and _is_model(history[start - 1]):
        start -= 1
    parts = [part for content in history[start:end] for part in parts_of(content)]
    return [part for part in parts if isinstance(get(part, "functionCall"), dict)], history[end:]


def _named(part: Document, answer: Document) -> Document:
    """A response with the name and the id of its call."""
    call = get(part, "functionCall")
    head = {key: call[key] for key in ("id", "name") if key in call}
    return {"functionResponse": {**answer, **head}}


def _is_model(content: Document) -> bool:
    return content.get("role") == "model"
