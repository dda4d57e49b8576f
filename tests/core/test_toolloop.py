"""The rules of the tool loop, without I/O."""

from collections.abc import Callable, Sequence

import pytest

from addon.core.answers.answer import CapturedCall
from addon.core.framing.documents import Document
from addon.core.toolloop import End, Ended, Loop, Round, RunTools, Send, tool_loop


def drive(loop: Loop, send: Callable[[Send], Round], run: Callable[[RunTools], Sequence[Document]]) -> Ended:
    """Run a loop to its end with plain functions."""
    wanted = next(loop)
    while True:
        try:
            wanted = loop.send(send(wanted) if isinstance(wanted, Send) else run(wanted))
        except StopIteration as stop:
            ended: Ended = stop.value
            return ended


CONTENT: Document = {"role": "model", "parts": [{"functionCall": {"name": "f"}}]}


def call(n: int = 0) -> CapturedCall:
    return CapturedCall(f"call_{n}", "f", {"n": n}, None, n)


def calls(count: int = 1, *, runs: bool = True) -> Round:
    return Round(CONTENT, tuple(map(call, range(count))), runnable=runs, finish="STOP")


TEXT = Round({"role": "model", "parts": [{"text": "done"}]}, (), runnable=False, finish="STOP")


def wrong(finish: str = "MALFORMED_FUNCTION_CALL") -> Round:
    return Round({}, (), runnable=False, finish=finish)


def responses(wanted: RunTools) -> Sequence[Document]:
    return [{"functionResponse": {"name": one.name, "response": {"of": one.call_id}}} for one in wanted.calls]


def played(rounds: Sequence[Round] | Callable[[int], Round], max_rounds: int = 10) -> tuple[Ended, list[Send]]:
    sent: list[Send] = []

    def send(wanted: Send) -> Round:
        sent.append(wanted)
        return rounds(len(sent)) if callable(rounds) else rounds[len(sent) - 1]

    return drive(tool_loop(max_rounds), send, responses), sent


def test_an_answer_without_calls_ends_the_loop() -> None:
    assert played([TEXT]) == (Ended(End.ANSWERED, 1), [Send((), None)])


def test_each_step_is_sent_back_with_its_responses_in_call_order() -> None:
    ended, sent = played([calls(2), calls(1), TEXT])
    assert ended == Ended(End.ANSWERED, 3)
    steps = sent[2].added
    assert [content["role"] for content in steps] == ["model", "user", "model", "user"]
    assert [p["functionResponse"]["response"]["of"] for p in steps[1]["parts"]] == ["call_0", "call_1"]
    assert sent[1].added == steps[:2], "what was sent once is sent again"


def test_a_mode_that_forces_calls_forces_the_first_step_only() -> None:
    _, sent = played([calls(), calls(), TEXT])
    assert [one.mode for one in sent] == [None, "AUTO", "AUTO"]


def test_a_model_that_calls_for_ever_is_stopped_by_a_last_request_without_calls() -> None:
    ended, sent = played(lambda n: calls() if n < 4 else TEXT, max_rounds=4)
    assert ended == Ended(End.ANSWERED, 4)
    assert [one.mode for one in sent] == [None, "AUTO", "AUTO", "NONE"]


def test_calls_despite_the_last_request_are_delivered() -> None:
    ended, sent = played(lambda n: calls(), max_rounds=2)
    assert ended == Ended(End.DELIVERED, 2)
    assert len(sent) == 2


def test_a_single_request_is_the_last_one() -> None:
    assert played([TEXT], max_rounds=1) == (Ended(End.ANSWERED, 1), [Send((), "NONE")])


def test_a_step_that_the_proxy_cannot_run_whole_is_delivered() -> None:
    assert played([calls(2, runs=False)])[0] == Ended(End.DELIVERED, 1)


@pytest.mark.parametrize("finish", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"])
def test_a_malformed_call_is_requested_once_more(finish: str) -> None:
    assert played([wrong(finish), TEXT])[0] == Ended(End.ANSWERED, 2)
    assert played([wrong(finish), wrong(finish)])[0] == Ended(End.FAILED, 2)
    assert played([wrong(finish), calls(), wrong(finish)])[0] == Ended(End.FAILED, 3), "once in a loop"


def test_a_malformed_call_in_the_last_request_fails() -> None:
    assert played([wrong()], max_rounds=1)[0] == Ended(End.FAILED, 1)


@pytest.mark.parametrize(
    ("counts", "modes"),
    [([1, 1], [None, "AUTO", "NONE"]), ([2], [None, "NONE"]), ([3], [None, "NONE"]), ([1], [None, "AUTO"])],
    ids=["one by one", "at once", "one too many", "fewer"],
)
def test_after_the_most_calls_of_an_answer_the_model_may_make_no_more(
    counts: list[int], modes: list[str | None]
) -> None:
    sent: list[Send] = []

    def send(wanted: Send) -> Round:
        sent.append(wanted)
        return calls(counts[len(sent) - 1]) if len(sent) <= len(counts) else TEXT

    assert drive(tool_loop(10, max_calls=2), send, responses).end is End.ANSWERED
    assert [one.mode for one in sent] == modes


def test_a_loop_that_goes_on_counts_the_calls_before() -> None:
    before = [CONTENT, {"role": "user", "parts": responses(RunTools((call(),)))}]
    assert next(tool_loop(10, before, 1, max_calls=1)) == Send(tuple(before), "NONE")
    assert next(tool_loop(10, before, 1, max_calls=2)) == Send(tuple(before), "AUTO")


def test_a_model_that_calls_all_the_same_is_not_obeyed() -> None:
    ended = drive(tool_loop(10, max_calls=1), lambda wanted: calls(), responses)
    assert ended == Ended(End.DELIVERED, 2)
