"""The store fails at each of its calls in turn, while a chat of two requests goes on: what was answered as if all were
well is in the next turn, and whatever else is an error in the form of the API."""

import json
import logging
from pathlib import Path

import pytest

from addon.core.framing.documents import Document
from tests.faults.chat_kinds import KINDS, chat_of
from tests.faults.chats import TOOL, Chat, Interactions
from tests.faults.faulty_store import BUSY, NO_SPACE, PLACE, SLOW, UNFORESEEN, Fault, check_log

pytestmark = pytest.mark.e2e  # some two thousand chats: too long for unit tests


async def run(chat: Chat) -> None:
    for words in (chat.question, "What is 1+1?"):
        await chat.say(words)
    chat.store.recover()
    await chat.ask([*chat.contents, {"role": "user", "parts": [{"text": "Thanks."}]}])


def check_told(contents: list[Document], *, times: int = 1, ran: bool = True) -> None:
    """So many calls of the first question are there, each followed by its result: if it was asked again, the answer
    before went on. `ran`: its tool has run, and the model is told no less."""
    parts = [part for content in contents for part in content["parts"]]
    at = [number for number, part in enumerate(parts) if "functionCall" in part]
    assert len(at) == times, parts
    for number in at:
        call, history = parts[number]["functionCall"], parts[number + 1]["functionResponse"]
        assert call["name"] == history["name"] == TOOL
        assert call["id"] == history["id"]
        assert history["response"] == {"celsius": 3} or (
            not ran and "could not be run" in history["response"]["error"]
        ), history


@pytest.mark.parametrize(
    ("policy", "faults"), [("fail", [NO_SPACE, BUSY, UNFORESEEN, SLOW]), ("pass", [NO_SPACE, UNFORESEEN])]
)
@pytest.mark.parametrize("kind", KINDS)
async def test_every_answer_is_in_the_next_turn_wherever_the_store_fails(
    kind: type[Chat], policy: str, faults: list[Fault], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "toolgraft")  # what was said before is told there alone
    async with chat_of(kind, tmp_path, policy) as chat:
        await run(chat)
        check_told(chat.last_history(), times=chat.steps)
        called = len(chat.store.called)
        assert called > 3
        for number, (fault, at) in enumerate((fault, at) for fault in faults for at in range(called)):
            caplog.clear()
            chat.begin(number)
            chat.store.fail(fault, at)
            try:
                await run(chat)
                assert bool(chat.store.raised) == (fault is not SLOW), "the call has come"
                check(chat, policy)
                check_log(caplog.records, chat.store.raised, chat.refused)
            except Exception as error:
                error.add_note(f"call {at} of the store: {chat.store.called[at:][:1]}, {fault}")
                raise


def check(chat: Chat, policy: str) -> None:
    raised = chat.store.raised
    assert not any("functionCall" in one or "function_call" in one for one in chat.visible)
    assert not any(PLACE in one for one in chat.visible)
    assert PLACE not in json.dumps([one["body"] for one in chat.app.log.requests])
    refused = [one["error"] for one in chat.app.log.requests if one["status"] >= 400]
    assert not refused or (policy == "pass" and isinstance(chat, Interactions)), refused
    if policy == "fail" or not raised:
        check_told(chat.last_history(), times=chat.steps, ran=chat.store.failed[:1] not in (["start"], ["confirm"]))
