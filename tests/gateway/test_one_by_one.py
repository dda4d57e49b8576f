"""`parallel_tool_calls: false` at `/v1/responses`: of a step the client is given one call after the other."""

from typing import Any

import pytest

from addon.core.framing.documents import Document
from addon.fake_gemini.server import StrictGemini
from tests.gateway.conftest import House
from tests.gateway.test_responses import TOOLS, TWO, calls, output, text
from tests.loop.conftest import call, says

THREE = f'{TWO} and call get_weather {{"city": "Rome"}}'
ANSWERED = 'get_weather returned {"n": 0}. get_time returned {"n": 1}. get_weather returned {"n": 2}.'


class Client:
    """Asks in one of the three ways to go on, JSON or streamed, and remembers what it was given."""

    def __init__(self, home: House, by: str, *, stream: bool = False) -> None:
        self.home = home
        self.by = by
        self.stream = stream
        self.items: list[Document] = []
        self.last: Document = {}

    async def ask(self, *given: Document, **more: Any) -> Document:
        self.items += given
        asked = list(given)
        if self.by == "conversation":
            more["conversation"] = "c"
        elif self.by == "items":
            asked, more = self.items, {"tools": TOOLS, "store": False, **more}
        elif self.last:
            more["previous_response_id"] = self.last["id"]
        if self.stream:
            events = await self.home.respond_stream(asked, **more)
            self.last = events[-1]["response"]
            done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
            assert done == self.last["output"], "no event tells of a call that is not given out"
        else:
            self.last = await self.home.respond(asked, **more)
        self.items += self.last["output"]
        return self.last


def words(text: str) -> Document:
    return {"role": "user", "content": text}


WAYS = pytest.mark.parametrize("by", ["conversation", "previous_response_id", "items"])


@WAYS
@pytest.mark.parametrize("stream", [False, True])
async def test_calls_come_one_after_the_other_and_the_turn_goes_up_whole(
    home: House, gemini: StrictGemini, by: str, stream: bool
) -> None:
    client = Client(home, by, stream=stream)
    (one,) = calls(await client.ask(words(THREE), tools=TOOLS, parallel_tool_calls=False))
    for n in range(2):
        await home.restart()
        response = await client.ask(output(one, n=n), parallel_tool_calls=False)
        assert (response["parallel_tool_calls"], response["usage"]) == (False, None)
        (one,) = calls(response)
        assert len(gemini.requests) == 1, "nothing goes up before the last"
    await home.restart()
    assert text(await client.ask(output(one, n=2), parallel_tool_calls=False)) == ANSWERED
    step = gemini.requests[1]["body"]["contents"][1]["parts"]
    assert ["functionCall" in part for part in step] == [True] * 3
    assert "thoughtSignature" in step[0]
    assert text(await client.ask(words("What is 1+1?"))) == "1 + 1 = 2."
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)


@WAYS
async def test_the_setting_of_a_step_applies_until_a_request_changes_it(home: House, by: str) -> None:
    client = Client(home, by)
    (one,) = calls(await client.ask(words(f"{THREE} then {THREE}"), tools=TOOLS, parallel_tool_calls=False))
    unsaid = await client.ask(output(one, n=0))
    assert (len(calls(unsaid)), unsaid["parallel_tool_calls"]) == (1, False)
    together = await client.ask(output(calls(unsaid)[0], n=1), parallel_tool_calls=True)
    assert (len(calls(together)), together["parallel_tool_calls"]) == (1, True)
    after = await client.ask(output(calls(together)[0], n=2))
    assert (len(calls(after)), after["parallel_tool_calls"]) == (3, True), "the next step is another request's"


@WAYS
async def test_with_true_all_that_is_left_is_given_out(home: House, gemini: StrictGemini, by: str) -> None:
    client = Client(home, by)
    (one,) = calls(await client.ask(words(THREE), tools=TOOLS, parallel_tool_calls=False))
    two, three = calls(await client.ask(output(one, n=0), parallel_tool_calls=True))
    assert text(await client.ask(output(three, n=2), output(two, n=1))) == ANSWERED
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)


@pytest.mark.parametrize("by", ["conversation", "previous_response_id"])
async def test_a_request_that_brings_an_output_may_begin_with_it(home: House, gemini: StrictGemini, by: str) -> None:
    client = Client(home, by)
    one, two, three = calls(await client.ask(words(THREE), tools=TOOLS))
    owed = await client.ask(output(two, n=1), parallel_tool_calls=False)
    assert [item["call_id"] for item in calls(owed)] == [one["call_id"]]
    owed = await client.ask(output(one, n=0))
    assert [item["call_id"] for item in calls(owed)] == [three["call_id"]]
    assert text(await client.ask(output(three, n=2))) == ANSWERED
    assert len(gemini.requests) == 2


@pytest.mark.parametrize("by", ["conversation", "previous_response_id"])
async def test_words_beside_an_output_are_told_after_the_last_one(home: House, gemini: StrictGemini, by: str) -> None:
    client = Client(home, by)
    (one,) = calls(await client.ask(words(TWO), tools=TOOLS, parallel_tool_calls=False))
    if by == "conversation":
        refused = await home.respond("Well?", 400, conversation="c")
        assert refused["error"]["message"] == f"No tool output found for function call {one['call_id']}."
    (other,) = calls(await client.ask(output(one, n=0), words("What is 1+1?")))
    await client.ask(output(other, n=1), words("And then?"))
    parts = gemini.requests[-1]["body"]["contents"][-1]["parts"]
    assert [part.get("text") for part in parts] == [None, None, "What is 1+1?", "And then?"]
    assert not gemini.refused


async def test_calls_alike_without_ids_keep_their_own_outputs(house: House) -> None:
    alike = [call("get_weather", city="Oslo"), call("get_weather", city="Rome")]
    for by in ("conversation", "items"):
        upstream = house.upstream([says(*alike, finish="STOP")], [says("done", finish="STOP")])
        client = Client(house, by)
        (one,) = calls(await client.ask(words("Both?"), tools=TOOLS, parallel_tool_calls=False))
        (other,) = calls(await client.ask(output(one, city="Oslo")))
        await client.ask(output(other, city="Rome"))
        responses = [{"functionResponse": {"name": "get_weather", "response": {"city": c}}} for c in ("Oslo", "Rome")]
        assert upstream.bodies[-1]["contents"][2] == {"role": "user", "parts": responses}


@WAYS
async def test_the_session_s_tools_are_run_together_as_ever(home: House, gemini: StrictGemini, by: str) -> None:
    async def get_news() -> str:
        return "rain"

    client = Client(home, by)
    home.proxy.tools.add("get_news", get_news)
    await home.open()
    asked = words("call get_news {} and call get_time {} and call get_news {} and call get_time {}")
    (one,) = calls(await client.ask(asked, tools=TOOLS, parallel_tool_calls=False))
    (other,) = calls(await client.ask(output(one, hour=1)))
    last = text(await client.ask(output(other, hour=2)))
    news = 'get_news returned {"result": "rain"}.'
    assert last == f'{news} get_time returned {{"hour": 1}}. {news} get_time returned {{"hour": 2}}.'
    assert (gemini.refused, gemini.dummy_signatures, len(gemini.requests)) == ([], 0, 2)


async def test_a_history_that_was_sent_whole_can_be_gone_on_from_amid_a_step(home: House, gemini: StrictGemini) -> None:
    asked = words(THREE)
    first = await home.respond([asked], tools=TOOLS, parallel_tool_calls=False)
    (one,) = calls(first)
    given = [asked, *first["output"], output(one, n=0)]
    second = await home.respond(given, tools=TOOLS)
    (two,) = calls(second)
    third = await home.respond([output(two, n=1)], previous_response_id=second["id"])
    (three,) = calls(third)
    assert text(await home.respond([output(three, n=2)], previous_response_id=third["id"])) == ANSWERED
    assert (gemini.refused, gemini.dummy_signatures, len(gemini.requests)) == ([], 0, 2)


async def test_a_step_that_went_through_the_other_door_is_one_of_calls_together_again(home: House) -> None:
    (one,) = calls(await home.respond(THREE, tools=TOOLS, conversation="c", parallel_tool_calls=False))
    answer = {"functionResponse": {"name": "get_time", "response": {"n": 1}}}
    await home.gemini(answer, conversation="c")
    refused = await home.respond([output(one, n=0), words("Well?")], 400, conversation="c")
    assert "No tool output found" in refused["error"]["message"]


async def test_a_client_s_own_history_may_do_without_a_call_that_was_given_together(
    home: House, gemini: StrictGemini
) -> None:
    asked = words(TWO)
    one, _ = calls(await home.respond([asked], tools=TOOLS, store=False))
    after = await home.respond([asked, one, output(one, n=0)], tools=TOOLS, store=False, parallel_tool_calls=False)
    assert text(after) == 'get_weather returned {"n": 0}.'
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)


async def test_a_call_that_is_given_later_stays_one_of_the_response_that_made_it(home: House) -> None:
    client = Client(home, "items")
    made = await client.ask(words(TWO), tools=TOOLS, parallel_tool_calls=False)
    (other,) = calls(await client.ask(output(calls(made)[0], n=0)))
    given = await home.store.given_calls("default", [other["call_id"]])
    assert given[other["call_id"]].response_id == made["id"]
