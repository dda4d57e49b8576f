"""The events of a stream that ends with a stored response."""

from typing import Any

import pytest

from addon.core.dialects.responses.answer import events_of
from tests.core.dialects.responses.published import event_of, response_of, translated
from tests.core.dialects.responses.test_translator import CALL, LOGPROBS, OTHER, SUMMARY, USAGE, answer, thought


def with_logprobs(*parts: Any) -> Any:
    document = answer(*parts)
    document["candidates"][0]["logprobsResult"] = LOGPROBS
    return document


@pytest.mark.parametrize(
    ("documents", "options"),
    [
        ([answer({"text": "Hello"}, usageMetadata=USAGE)], {}),
        ([answer(thought("Hm."), {"text": "Wait."}, CALL, OTHER)], {"reasoning": SUMMARY["reasoning"]}),
        ([answer(CALL, {"text": "Called."}, CALL)], {}),
        ([answer({"text": "It is"}, finish="MAX_TOKENS")], {"metadata": {"a": "b"}}),
        ([answer(finish="SAFETY")], {}),
        ([with_logprobs({"text": "Hi"})], {"top_logprobs": 1}),
    ],
)
def test_a_response_is_told_again_by_the_events_that_told_it(documents: Any, options: Any) -> None:
    done, events = translated(documents, **options)
    replayed = events_of(done.document())
    assert replayed == events
    assert [event_of(one).sequence_number for one in replayed] == list(range(len(replayed)))
    response_of(replayed[-1]["response"])
