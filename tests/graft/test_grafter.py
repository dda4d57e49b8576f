"""What becomes of requests: tools, toolConfig, history, and what waits for results."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from addon.core.framing.documents import Document, decode, encode
from addon.graft.capture import Capture
from addon.graft.exchange import Abandoned, Forward, Outcome, Reply
from addon.graft.grafter import Grafter, GraftFailed
from addon.surfaces import match
from addon.surfaces.base import Framing, Operation, Target
from store.base import Store, StoreUnavailable
from store.models import CachedTools, Call
from tests.contents import call, model, response, user
from tests.graft.conftest import EVENTS, SEARCH, WEATHER, Graft, answer, target

G3 = target(model="gemini-3-flash")
STREAM = target(Operation.STREAM, Framing.SSE)
OWN: Document = {"functionDeclarations": [{"name": "own"}]}
SOON = 5.0


def declared(sent: Document) -> list[str]:
    return [d["name"] for tool in sent.get("tools", []) for d in tool.get("functionDeclarations", [])]


TOLD = [model("[Called get_weather with {}]"), user('[get_weather returned {"t":1}]')]
"""A call with the result {"t": 1}, as text."""


async def answer_all(graft: Graft, result: Any, session: str = "default") -> None:
    for one in await graft.calls(session):
        if not one.status.final:
            await graft.store.answer(one.session, one.call_id, result=result)


# --- tools -------------------------------------------------------------------------------------------------------


async def test_a_session_without_a_toolset_has_no_scope_and_an_empty_toolset_is_one(graft: Graft) -> None:
    assert await graft.grafter.session_config("default") is None
    await graft.tools()
    assert await graft.grafter.session_config("default") is not None
    await graft.store.put_toolset("default", None)
    assert await graft.grafter.session_config("default") is None


async def test_strip_takes_the_clients_tools_out_and_puts_the_toolsets_in(graft: Graft) -> None:
    await graft.tools(WEATHER, tool_config={"functionCallingConfig": {"mode": "ANY"}})
    sent = await graft.sent(
        {"contents": [], "tools": [OWN, {"googleSearch": {}}], "tool_config": {"x": 1}, "safetySettings": [1]}
    )
    assert sent == {
        "contents": [],
        "tools": [{"functionDeclarations": [WEATHER]}],
        "tool_config": {"functionCallingConfig": {"mode": "ANY"}},
        "safetySettings": [1],
    }


async def test_an_empty_toolset_strips_everything_and_what_is_known_is_told_as_text(graft: Graft) -> None:
    await graft.tools(WEATHER)
    visible_turn = await graft.ask([user("hi")], answer(call()))
    await graft.tools()
    contents = [user("hi"), visible_turn, user("?"), model(call("own")), user(response("own"))]
    sent = await graft.sent({"contents": contents, "tools": OWN, "toolConfig": {}})
    assert sent.keys() == {"contents"}
    assert sent["contents"][:3] == contents[:3]
    assert "functionCall" not in encode(sent).decode()
    await answer_all(graft, {"t": 1})
    assert (await graft.contents(contents))[1:3] == [*TOLD, user("?")][:2]


async def test_keep_adds_the_toolsets_tools_to_the_clients(graft: Graft) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    sent = await graft.sent({"contents": [], "tools": {"function_declarations": {"name": "own", "x": 1}}})
    assert sent["tools"] == [
        {"function_declarations": {"name": "own", "x": 1}},
        {"functionDeclarations": [WEATHER]},
    ]


async def test_keep_renames_what_clashes_in_declarations_config_history_and_back(graft: Graft) -> None:
    long = "x" * 64
    config = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["get_weather", long]}}
    await graft.tools(WEATHER, {"name": long}, client_tools="keep", tool_config=config)
    own = [{"functionDeclarations": [WEATHER, {"name": long}, {"name": "get_weather_g2"}]}]
    sent = await graft.sent({"contents": [user("hi")], "tools": own})
    fresh = declared(sent)[3:]
    assert fresh == ["get_weather_g3", "x" * 61 + "_g2"]
    assert sent["toolConfig"]["functionCallingConfig"]["allowedFunctionNames"] == fresh
    visible_turn = await graft.ask([user("hi")], answer(call(fresh[0], id="x"), call(fresh[1])), tools=own)
    assert [one.name for one in await graft.calls()] == ["get_weather", long]
    await answer_all(graft, {"t": 1})
    history = (await graft.sent({"contents": [user("hi"), visible_turn, user("?")], "tools": own}))["contents"]
    assert history[1] == model(call(fresh[0], id="x"), call(fresh[1]))
    assert history[2] == user(response(fresh[0], {"t": 1}, id="x"), response(fresh[1], {"t": 1}))


KEPT = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["own"]}, "retrievalConfig": {"a": 1}}


@pytest.mark.parametrize(
    ("own", "ours", "merged"),
    [
        (None, None, None),
        (KEPT, None, KEPT),
        (
            {"function_calling_config": {"mode": "any", "allowed_function_names": "own"}},
            {"functionCallingConfig": {"mode": "AUTO", "allowedFunctionNames": ["get_weather"]}},
            {"functionCallingConfig": {"mode": "any", "allowedFunctionNames": ["own", "get_weather"]}},
        ),
        (
            {"functionCallingConfig": {"mode": "NONE"}},
            {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["get_weather"]}},
            {"functionCallingConfig": {"mode": "NONE"}},
        ),
        ({"retrievalConfig": {"a": 1}}, {"retrievalConfig": {"a": 2}, "b": 1}, {"retrievalConfig": {"a": 1}, "b": 1}),
    ],
    ids=["none", "the client's", "joined", "the client's mode", "others"],
)
async def test_keep_merges_tool_configs_and_what_the_client_says_stays(
    graft: Graft, own: Any, ours: Any, merged: Any
) -> None:
    await graft.tools(WEATHER, client_tools="keep", tool_config=ours)
    sent = await graft.sent({"contents": [], "tools": [OWN], **({"toolConfig": own} if own else {})})
    assert sent.get("toolConfig") == merged


@pytest.mark.parametrize("model_name", ["gemini-2.5-flash", "gemini-3-flash"])
async def test_the_clients_built_in_tools_beside_functions(graft: Graft, model_name: str) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    sent = await graft.sent({"contents": [], "tools": [{"googleSearch": {}}]}, target(model=model_name))
    if model_name.startswith("gemini-2"):
        assert sent == {"contents": [], "tools": [{"googleSearch": {}}]}
    else:
        assert declared(sent) == ["get_weather"]
        assert sent["toolConfig"] == {"includeServerSideToolInvocations": True}


@pytest.mark.parametrize("model_name", ["gemini-2.5-flash", "gemini-3-flash"])
async def test_the_toolsets_own_built_in_tools_beside_functions(graft: Graft, model_name: str) -> None:
    config = {"includeServerSideToolInvocations": True}
    await graft.tools(WEATHER, builtins=[{"googleSearch": {}}], tool_config=config)
    sent = await graft.sent({"contents": []}, target(model=model_name))
    assert declared(sent) == ["get_weather"]
    assert ({"googleSearch": {}} in sent["tools"]) is (model_name == "gemini-3-flash")
    assert sent.get("toolConfig") == (config if model_name == "gemini-3-flash" else None)


@pytest.mark.parametrize("client_tools", ["strip", "keep"])
async def test_vertex_never_gets_the_flag_for_built_in_tools_beside_functions(graft: Graft, client_tools: str) -> None:
    config = {"includeServerSideToolInvocations": True}
    await graft.tools(WEATHER, builtins=[{"googleSearch": {}}], tool_config=config, client_tools=client_tools)
    vertex = match("POST", "aiplatform.googleapis.com", "/v1/publishers/google/models/gemini-3-flash:generateContent")
    assert vertex is not None
    sent = await graft.sent({"contents": [], "tools": [{"codeExecution": {}}], "toolConfig": config}, vertex)
    assert declared(sent) == ["get_weather"]
    assert {"googleSearch": {}} in sent["tools"]
    assert "toolConfig" not in sent


async def test_a_long_name_is_shortened_upstream_and_whole_everywhere_else(graft: Graft) -> None:
    long = "look_up_" + "n" * 120
    await graft.tools({"name": long})
    sent = await graft.sent({"contents": [user("hi")]}, G3)
    (used,) = declared(sent)
    assert len(used) == 64
    visible_turn = await graft.ask([user("hi")], answer(call(used, id="1"), model="gemini-3-flash"))
    assert long in visible_turn["parts"][0]["text"]
    assert [one.name for one in await graft.calls()] == [long]
    await answer_all(graft, {"t": 1})
    contents = await graft.contents([user("hi"), visible_turn, user("?")])
    assert contents[1]["parts"][0]["functionCall"]["name"] == used
    assert contents[2]["parts"][0]["functionResponse"]["name"] == used


async def test_fields_that_the_model_refuses_are_left_out_with_one_warning(
    graft: Graft, caplog: pytest.LogCaptureFixture
) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    for _ in range(2):
        await graft.sent({"contents": [], "tools": [{"googleSearch": {}}]})
    assert sum("left out" in record.message for record in caplog.records) == 1


async def test_hidden_server_tools_come_back_in_the_next_request(graft: Graft) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    used = {"toolCall": {"toolType": "GOOGLE_SEARCH", "id": "1"}, "thoughtSignature": "c2ln"}
    got = {"toolResponse": {"toolType": "GOOGLE_SEARCH", "id": "1"}}
    body: Document = {"contents": [user("hi")], "tools": [{"googleSearch": {}}]}
    exchange = await graft.exchange(body, G3)
    visible_turn = decode(await graft.captured(exchange, encode(answer(used, got, "Found."))))["candidates"][0][
        "content"
    ]
    assert visible_turn == model("Found.")
    later = {**body, "contents": [user("hi"), visible_turn, user("?")]}
    assert (await graft.sent(later, G3))["contents"][1] == model(used, got, "Found.")
    assert (await graft.sent(later))["contents"] == later["contents"]  # 2.5 refuses the flag


async def test_server_tool_parts_that_the_client_asked_for_are_its_own(graft: Graft) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    body: Document = {"contents": [], "tools": [{"googleSearch": {}}]}
    body["tool_config"] = {"include_server_side_tool_invocations": True}
    exchange = await graft.exchange(body, G3)
    assert not exchange.plan.hides_server_tools


CANNOT: list[tuple[Document, str]] = [
    ({"responseMimeType": "application/json"}, "gemini-2.5-flash"),
    ({"response_mime_type": "text/x.enum"}, "gemini-3-flash"),
    ({"responseSchema": {}}, "gemini-3-flash"),
    ({"response_json_schema": {}}, "gemini-3-flash"),
    ({"responseModalities": ["TEXT", "IMAGE"]}, "gemini-3-flash"),
    ({"responseModalities": "AUDIO"}, "gemini-2.5-flash"),
    ({}, "gemini-2.5-flash-image"),
    ({}, "gemini-2.5-flash-preview-tts"),
]


@pytest.mark.parametrize(("config", "name"), CANNOT)
async def test_a_request_that_cannot_use_functions_gets_none_and_what_is_known_is_told_as_text(
    graft: Graft, config: Document, name: str
) -> None:
    """It is neither waited for nor blocked."""
    for client_tools, own in (("strip", {}), ("keep", {"tools": [OWN]})):
        await graft.tools(WEATHER, client_tools=client_tools, on_pending="block")
        visible_turn = await graft.ask([user(client_tools)], answer(call()))
        contents = [user(client_tools), visible_turn, user("?")]
        body = encode({"contents": contents, "tools": [OWN], "generationConfig": config})
        outcome = await graft.request(body, target(model=name))
        assert isinstance(outcome, Forward)
        assert outcome.exchange is None
        assert decode(outcome.body) == {"contents": contents, **own, "generationConfig": config}
        assert own == {} or outcome.body == body
        await answer_all(graft, {"t": 1})
        outcome = await graft.request(body, target(model=name))
        assert isinstance(outcome, Forward)
        assert outcome.exchange is None
        expected = [user(client_tools), *TOLD, user("?")]
        assert decode(outcome.body) == {"contents": expected, **own, "generationConfig": config}


@pytest.mark.parametrize("client_tools", ["strip", "keep"])
async def test_a_request_for_structured_output_tells_of_a_chat_what_is_known_and_shows_the_rest(
    graft: Graft, client_tools: str
) -> None:
    """A step with a result, one without, one that was passed through and one with a call of the client's own."""
    await graft.tools(WEATHER, SEARCH, client_tools=client_tools)
    first = await graft.ask([user("a")], answer("Well.", call("search", "c2ln"), call()))
    await answer_all(graft, {"t": 1})
    history = [user("a"), first, user("b")]
    history += [await graft.ask(history, answer(call())), user("c")]
    config: Document = {"responseMimeType": "application/json", "responseSchema": {"type": "OBJECT"}}
    body: Document = {"contents": history, "tools": [OWN], "generationConfig": config}
    sent = await graft.sent(body)
    assert sent["contents"] == [
        user("a"),
        model("Well.", "[Called search with {}]", "[Called get_weather with {}]"),
        user('[search returned {"t":1}]', '[get_weather returned {"t":1}]'),
        *history[2:],
    ]
    if client_tools == "keep":
        mixed = await graft.ask(history, answer(call("own"), call("search")), tools=[OWN])
        history += [mixed, user(response("own", {"o": 1}), "d")]
        pending = (await graft.sent({**body, "contents": history}))["contents"]
        assert pending[-2:] == history[-2:]
        await answer_all(graft, {"t": 2})
        contents = (await graft.sent({**body, "contents": history}))["contents"]
        assert contents[-3:] == [
            model("[Called own with {}]", "[Called search with {}]"),
            user('[own returned {"o":1}]', '[search returned {"t":2}]'),
            user("d"),
        ]


@pytest.mark.parametrize("config", [{"responseMimeType": "text/plain"}, {"responseModalities": ["TEXT"]}, [], None])
async def test_a_plain_text_request_is_grafted(graft: Graft, config: Any) -> None:
    await graft.tools(WEATHER)
    assert declared(await graft.sent({"contents": [], "generationConfig": config})) == ["get_weather"]


async def test_with_a_cache_that_is_known_its_names_hold_and_nothing_is_added(graft: Graft) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    kept = CachedTools(session="default", cached_content="c/1", names={"get_weather": "get_weather_g2"}, created_at=1e6)
    await graft.store.put_cached_tools(kept)
    body: Document = {"contents": [user("hi")], "cached_content": "c/1"}
    assert await graft.sent(body) == body
    visible_turn = await graft.ask([user("hi")], answer(call("get_weather_g2"), call("own")), cached_content="c/1")
    assert visible_turn == model(call("own"))
    history = [user("hi"), visible_turn, user(response("own"))]
    sent = await graft.sent({**body, "contents": history})
    assert sent["contents"][1] == model(call("get_weather_g2"), call("own"))
    assert "tools" not in sent


async def test_with_a_cache_that_is_not_known_nothing_is_touched(graft: Graft) -> None:
    await graft.tools(WEATHER)
    await graft.tools(WEATHER, session="other")
    kept = CachedTools(session="other", cached_content="c/1", names={}, created_at=1e6)
    await graft.store.put_cached_tools(kept)
    body = b'{"contents":[], "cachedContent":"c/1"}'
    assert await graft.request(body) == Forward(body)


async def test_making_a_cache_is_stripped_injected_and_rewritten_without_waiting(graft: Graft) -> None:
    await graft.tools(WEATHER, on_pending="block")
    visible_turn = await graft.ask([user("hi")], answer(call()))
    body: Document = {"model": "models/gemini-2.5-flash", "ttl": "1s", "tools": [OWN], "contents": []}
    body["contents"] = [user("a"), model(call("own")), user(response("own")), visible_turn, user("?")]
    sent = await graft.sent(body, target(Operation.CACHE, model=""))
    assert declared(sent) == ["get_weather"]
    assert sent["ttl"] == "1s"
    assert "functionCall" not in encode(sent).decode()


@pytest.mark.parametrize(
    ("to", "body", "where"),
    [
        (target(Operation.COUNT), {"contents": []}, "generateContentRequest"),
        (target(Operation.COUNT), {"generateContentRequest": {"contents": []}}, "generateContentRequest"),
        (target(Operation.COUNT), {"generate_content_request": {"contents": []}}, "generate_content_request"),
        (target(Operation.COUNT, surface="vertex"), {"contents": []}, ""),
        (target(Operation.COUNT, surface="codeassist"), {"request": {"contents": []}}, None),
        (target(Operation.COUNT, surface="codeassist"), {"request": {"contents": [], "tools": [OWN]}}, "request"),
    ],
    ids=["bare", "whole", "whole, snake case", "vertex", "code assist", "code assist with tools"],
)
async def test_count_tokens_is_rewritten_and_counts_the_tools_where_its_form_can_have_them(
    graft: Graft, to: Target, body: Document, where: str | None
) -> None:
    await graft.tools(WEATHER, on_pending="block")
    visible_turn = await graft.ask([user("hi")], answer(call()))
    inner = next((v for v in body.values() if isinstance(v, dict)), body)
    inner["contents"] = [user("hi"), visible_turn, user("?"), model("a"), user("b")]
    outcome = await graft.request(body, to)
    assert isinstance(outcome, Forward)
    assert outcome.exchange is None
    sent = decode(outcome.body)
    visible = sent[where] if where else sent
    assert declared(visible) == ([] if where is None else ["get_weather"])
    written = next((v for v in sent.values() if isinstance(v, dict)), sent)["contents"]
    assert written[1]["parts"][0]["functionCall"] == call()["functionCall"]


@pytest.mark.parametrize("client_tools", ["strip", "keep"])
@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"contents": [user("hi")]}, {"model": "models/gemini-2.5-flash", "contents": [user("hi")]}),
        ({"contents": user("hi")}, {"model": "models/gemini-2.5-flash", "contents": user("hi")}),
        ({"model": "models/m", "contents": []}, {"model": "models/m", "contents": []}),
        ({"x": "enerate"}, None),
        ({}, None),
    ],
)
async def test_a_count_of_contents_alone_becomes_the_form_that_counts_tools(
    graft: Graft, client_tools: str, given: Document, sent: Document | None
) -> None:
    """It names the model, and other members stay beside it; without contents the service has its own words for it."""
    await graft.tools(WEATHER, client_tools=client_tools, tool_config={"functionCallingConfig": {"mode": "ANY"}})
    to = target(Operation.COUNT)
    outcome = await graft.request({**given, "more": 1}, to)
    assert isinstance(outcome, Forward)
    if sent is None:
        assert "generateContentRequest" not in decode(outcome.body)
        return
    tools = {
        "tools": [{"functionDeclarations": [WEATHER]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
    }
    assert decode(outcome.body) == {"more": 1, "generateContentRequest": {**sent, **tools}}
    await graft.tools(client_tools=client_tools)
    assert await graft.request(encode(given), to) == Forward(encode(given))


async def test_count_tokens_and_continuations_never_wait_or_block(graft: Graft) -> None:
    for policy in ("block", "wait"):
        await graft.tools(WEATHER, on_pending=policy, pending_timeout=3600)
        visible_turn = await graft.ask([user("hi")], answer(call()))
        body: Document = {"contents": [user("hi"), visible_turn, user("?")]}
        for to, more in ((target(Operation.COUNT), {}), (target(), {"continuationToken": "t"})):
            outcome = await asyncio.wait_for(graft.request({**body, **more}, to), SOON)
            assert isinstance(outcome, Forward)


async def test_single_objects_and_snake_case_are_taken(graft: Graft) -> None:
    await graft.tools(WEATHER)
    sent = await graft.sent(
        {
            "contents": {"parts": {"text": "hi"}},
            "tools": {"function_declarations": {"name": "own"}},
            "tool_config": {"function_calling_config": {"mode": "any"}},
            "system_instruction": {"parts": {"text": "s"}},
        }
    )
    assert sent == {
        "contents": {"parts": {"text": "hi"}},
        "tools": [{"functionDeclarations": [WEATHER]}],
        "system_instruction": {"parts": {"text": "s"}},
    }


async def test_a_code_assist_request_is_rewritten_in_its_envelope(graft: Graft) -> None:
    await graft.tools(WEATHER)
    to = target(surface="codeassist")
    body: Document = {"model": "gemini-2.5-pro", "project": "P", "request": {"contents": [user("hi")], "tools": [OWN]}}
    exchange = await graft.exchange(body, to)
    assert exchange.model == "gemini-2.5-pro"
    sent = await graft.sent(body, to)
    assert sent["project"] == "P"
    assert declared(sent["request"]) == ["get_weather"]


BAD = [b"", b"nope", b"[]", b'"x"', b'{"contents":[1]}', b'{"contents":[],"contents":[]}', b'{"a":"}","a":1}']


@pytest.mark.parametrize("body", BAD)
async def test_bytes_that_are_not_understood_go_on_untouched_with_one_warning(
    graft: Graft, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    await graft.tools(WEATHER)
    for _ in range(2):
        outcome = await graft.request(body)
        assert isinstance(outcome, Forward)
        assert outcome.body is body
        assert outcome.exchange is None
    assert sum("passed on unchanged" in record.message for record in caplog.records) == 1


# --- the ledger --------------------------------------------------------------------------------------------------


async def test_a_placeholder_is_found_by_its_id_in_a_chat_that_was_cut_at_its_front(graft: Graft) -> None:
    await graft.tools(WEATHER)
    one = await graft.ask([user("a")], answer(call(args={"n": 1}, id="x", signature="c2ln")))
    await answer_all(graft, {"n": 1})
    out = await graft.contents([user("something else"), one, user("?")])
    assert out[1:3] == [model(call(args={"n": 1}, id="x", signature="c2ln")), user(response(value={"n": 1}, id="x"))]


async def test_a_placeholder_of_another_session_stays_text_even_beside_a_step_of_the_same_words(graft: Graft) -> None:
    await graft.tools(WEATHER)
    await graft.tools(WEATHER, session="other")
    visible_turn = await graft.ask([user("a")], answer(call()))
    await graft.ask([user("a")], answer(call()), session="other")
    await answer_all(graft, {"n": 1})
    await answer_all(graft, {"n": 1}, "other")
    history = [user("a"), visible_turn, user("?")]
    assert await graft.contents(history, session="other") == history
    assert await graft.contents(history) != history


async def test_chunks_kept_apart_or_joined_are_one_turn_whatever_clients_lose_on_the_way(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough")
    called = call(args={"n": 1.0}, id="x", signature="c2ln")
    parts: list[Any] = [{"text": "Th", "thought": True}, "Let me ", "look.", called]
    before = [user("hi"), model({"inlineData": {"mimeType": "image/png", "data": "-_-_"}}), user("go")]
    await graft.ask(before, answer(*parts))
    await answer_all(graft, {"t": 1})
    sent = {"functionCall": {"name": "get_weather", "args": {"n": 1}}}
    image = {"inline_data": {"mime_type": "image/png", "data": "+/+/"}}
    for run in (
        [model("Let me look.", sent)],
        [model("\nLet me "), model(""), model("look.\n", " "), model(sent)],
        [{"role": "model", "parts": {"text": "Let me look."}}, model({"thought": True, "text": "Hm"}), model(sent)],
    ):
        out = await graft.contents([user("hi"), model(image), user("go"), *run, user("?")])
        assert model("Let me look.", called) in out
        assert user(response(value={"t": 1}, id="x")) in out


async def test_a_turn_with_the_same_words_in_another_chat_is_found_by_all_before_it(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough")
    chats = [[user(first), model("ok"), user("weather?")] for first in ("Oslo", "Bergen")]
    for n, chat in enumerate(chats):
        await graft.ask(chat, answer(call(signature=f"sig{n}")))
    for n, chat in enumerate(chats):
        out = await graft.contents([*chat, model(call()), user(response())])
        assert out[3] == model(call(signature=f"sig{n}"))
    # cut at its front it could be either
    cut = [user("weather?"), model(call()), user(response())]
    assert await graft.contents(cut) == cut


async def test_a_chat_cut_at_its_front_is_found_by_words_that_are_no_coincidence(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough")
    words = user("What will the weather be like in Oslo tomorrow afternoon?")
    for asked in (words, user("weather?")):
        await graft.ask([user("Oslo"), model("ok"), asked], answer(call(signature="c2ln")))
        out = await graft.contents([asked, model(call()), user(response())])
        assert (out[1] == model(call(signature="c2ln"))) is (asked is words)


async def test_a_turn_stands_in_a_history_only_once_unless_its_id_says_so(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough")
    await graft.ask([user("weather?")], answer(call(signature="c2ln")))
    twice = [user("weather?"), model(call()), user(response(), "thanks"), model("ok"), user("weather?"), model(call())]
    out = await graft.contents([*twice, user(response())])
    assert out[1] == model(call(signature="c2ln"))
    assert out[5] == model(call())


async def test_the_newest_completely_delivered_of_regenerated_answers_wins(graft: Graft) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    for n in (1, 2):
        await graft.ask([user("hi")], answer(call("own"), call(signature=f"sig{n}")), tools=[OWN])
    cut = Capture(graft.grafter, await graft.exchange({"contents": [user("hi")], "tools": [OWN]}, STREAM), EVENTS)
    cut.feed(b"data: " + encode(answer(call("own"), call(signature="sig3"))) + b"\r\n\r\n")
    out = await graft.contents([user("hi"), model(call("own")), user(response("own"))])
    assert out[1] == model(call("own"), call(signature="sig2"))


async def test_a_regenerated_answer_that_was_passed_through_is_known_by_its_signature_only(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough")
    for n in (1, 2):
        await graft.ask([user("hi")], answer(call(signature=f"sig{n}"), call()))
    lost = [user("hi"), model(call(), call()), user(response(value={"t": 1}), response(value={"t": 2}))]
    assert await graft.contents(lost) == lost
    assert [c.result for c in await graft.calls()] == [None] * 4
    kept = [lost[0], model(call(signature="sig1"), call()), lost[2]]
    assert await graft.contents(kept) == kept
    assert [c.result for c in await graft.calls()] == [{"t": 1}, {"t": 2}, None, None]


async def test_the_same_chat_twice_is_told_apart_by_the_ids_of_its_calls(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough")
    for name in ("one", "two"):
        await graft.ask([user("hi")], answer(call(id=name, signature=name)))
    out = await graft.contents([user("hi"), model(call(id="one")), user(response(id="one"))])
    assert out[1] == model(call(id="one", signature="one"))


async def test_a_bare_placeholder_is_bound_once_and_for_good(graft: Graft) -> None:
    await graft.tools(WEATHER)
    bare = [user("hi"), model("Tool call completed"), user("?")]
    assert await graft.contents(bare) == bare
    await graft.ask([user("hi")], answer(call(args={"n": 1})))
    await answer_all(graft, {"t": 1})
    first = await graft.contents(bare)
    assert first[1] == model(call(args={"n": 1}))
    await graft.ask([user("hi")], answer(call(args={"n": 2})))
    await answer_all(graft, {"t": 2})
    assert await graft.contents(bare) == first
    other = [user("bye"), model("Tool call completed: get_weather"), user("?")]
    assert await graft.contents(other) == other


async def test_a_second_bare_placeholder_after_the_same_words_is_bound_to_the_next_step(graft: Graft) -> None:
    await graft.tools(WEATHER)
    chat = [user("hi")]
    for n in (1, 2, 3):
        await graft.ask(chat, answer(call(args={"n": n})))
        await answer_all(graft, {"t": n})
        chat += [model("Tool call completed"), user("hi")]
        out = await graft.contents(chat)
        numbers = [p["functionCall"]["args"]["n"] for c in out for p in c["parts"] if "functionCall" in p]
        assert numbers == list(range(1, n + 1))


async def test_a_repeated_placeholder_vanishes(graft: Graft) -> None:
    await graft.tools(WEATHER)
    visible_turn = await graft.ask([user("hi")], answer(call()))
    await answer_all(graft, {"t": 1})
    out = await graft.contents([user("hi"), visible_turn, user("a"), visible_turn, user("b")])
    assert out == [user("hi"), model(call()), user(response(value={"t": 1})), user("a"), user("b")]


async def test_the_same_history_is_rewritten_the_same_and_a_late_result_is_told(graft: Graft) -> None:
    await graft.tools(WEATHER, SEARCH)
    visible_turn = await graft.ask([user("hi")], answer(call(), call("search")))
    history = [user("hi"), visible_turn, user("?")]
    assert await graft.contents(history) == history
    one, two = await graft.calls()
    await graft.store.answer(one.session, one.call_id, result={"t": 1})
    partly = await graft.contents(history)
    assert partly == await graft.contents(history)
    assert partly[2] == user(response(value={"t": 1}), response("search", {"error": "no result"}))
    await graft.store.answer(two.session, two.call_id, error="broken")
    assert (await graft.contents(history))[2]["parts"][1] == response("search", {"error": "broken"})


async def test_earlier_steps_are_rewritten_without_any_result(graft: Graft) -> None:
    await graft.tools(WEATHER, on_pending="block")
    visible_turn = await graft.ask([user("hi")], answer(call()))
    out = await graft.contents([user("hi"), visible_turn, user("?"), model("Well."), user("so?")])
    assert out[1:3] == [model(call()), user(response(value={"error": "no result"}))]


async def test_a_long_chat_is_rewritten_the_same_read_cold_and_read_on(store: Store) -> None:
    warm = Graft(store)
    await warm.tools(WEATHER)
    chat = [user("x" * 6000)]
    for n in range(6):
        visible_turn = await warm.ask(chat, answer(call(args={"n": n})))
        await answer_all(warm, {"t": n})
        chat += [visible_turn, user(f"and {n}?")]
        cold = Graft(store)
        assert await warm.contents(chat) == await cold.contents(chat)
    call_parts = [part for c in await warm.contents(chat) for part in c["parts"] if "functionCall" in part]
    assert [part["functionCall"]["args"] for part in call_parts] == [{"n": n} for n in range(6)]


# --- passthrough and mixed ---------------------------------------------------------------------------------------


async def test_passthrough_stores_the_clients_response_and_the_first_answer_wins(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough")
    visible_turn = await graft.ask([user("hi")], answer(call(id="x")))
    history = [user("hi"), visible_turn, user(response(value={"mine": 1}, id="x"))]
    assert await graft.contents(history) == history
    (stored,) = await graft.calls()
    assert stored.result == {"mine": 1}
    retry = [user("hi"), visible_turn, user(response(value={"mine": 2}, id="x"))]
    assert await graft.contents(retry) == retry  # in place, whatever the store holds
    assert (await graft.calls())[0].result == {"mine": 1}


async def test_passthrough_inserts_what_is_missing(graft: Graft) -> None:
    await graft.tools(WEATHER, SEARCH, delivery="passthrough")
    visible_turn = await graft.ask([user("hi")], answer(call(), call("search")))
    await graft.store.answer("default", (await graft.calls())[0].call_id, result={"t": 1})
    out = await graft.contents([user("hi"), visible_turn, user(response("search", {"s": 1}))])
    assert out[2] == user(response(value={"t": 1}), response("search", {"s": 1}))
    assert [one.result for one in await graft.calls()] == [{"t": 1}, {"s": 1}]


async def test_passthrough_under_another_name_is_taken_too(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough", client_tools="keep")
    own = [{"functionDeclarations": [WEATHER]}]
    visible_turn = await graft.ask([user("hi")], answer(call("get_weather_g2")), tools=own)
    history = [user("hi"), visible_turn, user(response("get_weather_g2", {"mine": 1}))]
    assert (await graft.sent({"contents": history, "tools": own}))["contents"] == history
    assert (await graft.calls())[0].result == {"mine": 1}


@pytest.mark.parametrize("policy", ["pass", "block"])
async def test_a_mixed_step_is_restored_whole_whatever_is_pending(graft: Graft, policy: str) -> None:
    await graft.tools(WEATHER, client_tools="keep", on_pending=policy)
    visible_turn = await graft.ask([user("hi")], answer(call(id="w"), call("own", id="o")), tools=[OWN])
    assert visible_turn == model(call("own", id="o"))
    body: Document = {"tools": [OWN], "contents": [user("hi"), visible_turn, user(response("own", id="o"), "?")]}
    sent = await graft.sent(body)
    assert sent["contents"][1] == model(call(id="w"), call("own", id="o"))
    expected = user(response(value={"error": "no result"}, id="w"), response("own", id="o"))
    assert sent["contents"][2:] == [expected, user("?")]
    await answer_all(graft, {"t": 1})
    assert (await graft.sent(body))["contents"][2]["parts"][0] == response(value={"t": 1}, id="w")


# --- missing results ---------------------------------------------------------------------------------------------


async def pending(graft: Graft, **policy: Any) -> list[Document]:
    """A history whose last model turn is a step without results."""
    await graft.tools(WEATHER, **policy)
    visible_turn = await graft.ask([user("hi")], answer("Let me look.", call()))
    return [user("hi"), visible_turn, user("?")]


async def when(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch, store: Store) -> list[float]:
    """The timeouts of the store's waits, in the order that they begin."""
    begun: list[float] = []
    wait = store.wait_call

    async def noted(call: Call, timeout: float) -> Call | None:
        begun.append(timeout)
        return await wait(call, timeout)

    monkeypatch.setattr(store, "wait_call", noted)
    return begun


async def running(graft: Graft, history: Sequence[Document], **kwargs: Any) -> "asyncio.Task[Outcome]":
    return asyncio.ensure_future(graft.request({"contents": list(history)}, **kwargs))


async def test_wait_goes_on_at_once_when_the_result_comes(graft: Graft, waits: list[float]) -> None:
    history = await pending(graft, on_pending="wait", pending_timeout=3600)
    task = await running(graft, history)
    await when(lambda: waits)
    await answer_all(graft, {"t": 1})
    outcome = await asyncio.wait_for(task, SOON)
    assert isinstance(outcome, Forward)
    assert decode(outcome.body)["contents"][2] == user(response(value={"t": 1}))


async def test_wait_goes_on_only_when_every_call_of_the_step_has_a_result(graft: Graft, waits: list[float]) -> None:
    await graft.tools(WEATHER, on_pending="wait", pending_timeout=3600)
    visible_turn = await graft.ask([user("hi")], answer(call(), call()))
    task = await running(graft, [user("hi"), visible_turn, user("?")])
    await when(lambda: waits)
    one, two = await graft.calls()
    await when(lambda: len(waits) == 2)
    await graft.store.answer(one.session, one.call_id, result=1)
    await when(lambda: len(waits) == 3)
    assert not task.done()
    await graft.store.answer(two.session, two.call_id, result=2)
    assert isinstance(await asyncio.wait_for(task, SOON), Forward)


async def test_wait_ends_when_the_client_hangs_up(graft: Graft, waits: list[float]) -> None:
    history = await pending(graft, on_pending="wait", pending_timeout=3600)
    gone = asyncio.Event()
    task = await running(graft, history, hangup=gone.wait)
    await when(lambda: waits)
    gone.set()
    assert await asyncio.wait_for(task, SOON) == Abandoned()


@pytest.mark.parametrize("timeout", [0, 0.01])
async def test_wait_ends_with_its_timeout_and_then_passes(graft: Graft, timeout: float) -> None:
    history = await pending(graft, on_pending="wait", pending_timeout=timeout)
    outcome = await asyncio.wait_for(await running(graft, history), SOON)
    assert isinstance(outcome, Forward)
    assert decode(outcome.body)["contents"] == history


async def test_a_wait_that_is_cancelled_leaves_nothing_running(graft: Graft, waits: list[float]) -> None:
    history = await pending(graft, on_pending="wait", pending_timeout=3600)
    before = asyncio.all_tasks()
    task = await running(graft, history)
    await when(lambda: waits)
    task.cancel()
    await asyncio.wait({task})
    await when(lambda: asyncio.all_tasks() == before)


async def test_a_store_that_fails_while_a_request_waits_is_told(
    graft: Graft, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    history = await pending(graft, on_pending="wait", pending_timeout=3600)

    async def fail(*_: Any, **__: Any) -> bool:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(graft.store, "wait_call", fail)
    outcome = await graft.request({"contents": history})
    assert isinstance(outcome, Reply)
    assert outcome.status == 503


BLOCKED = [
    (target(), "application/json; charset=UTF-8", lambda data: decode(data)),
    (STREAM, "text/event-stream", lambda data: decode(data.removeprefix(b"data: ").removesuffix(b"\r\n\r\n"))),
    (target(Operation.STREAM, Framing.ARRAY), "application/json; charset=UTF-8", lambda data: decode(data)[0]),
    (target(surface="codeassist"), "application/json; charset=UTF-8", lambda data: decode(data)["response"]),
]


@pytest.mark.parametrize(("to", "kind", "read"), BLOCKED, ids=["json", "sse", "array", "envelope"])
async def test_block_answers_with_the_placeholder_again_in_the_form_that_was_asked_for(
    graft: Graft, to: Target, kind: str, read: Callable[[bytes], Document]
) -> None:
    history = await pending(graft, on_pending="block")
    (turn,) = await graft.turns()
    body: Document = {"contents": history}
    outcome = await graft.request({"model": "m", "request": body} if to.request_path else body, to)
    assert isinstance(outcome, Reply)
    assert (outcome.status, outcome.content_type) == (200, kind)
    (candidate,) = read(outcome.body)["candidates"]
    placeholder = f"Tool call completed: get_weather [{turn.turn_id}]"
    assert candidate["content"] == {"parts": [{"text": placeholder}], "role": "model"}
    assert candidate["finishReason"] == "STOP"
    # and so on, until the result is there: then the step is told once, and the user turns join
    retry = [*history, candidate["content"], user("well?")]
    assert isinstance(await graft.request({"contents": retry}), Reply)
    await answer_all(graft, {"t": 1})
    out = await graft.contents(retry)
    assert out == [
        user("hi"),
        model("Let me look.", call()),
        user(response(value={"t": 1})),
        user("?"),
        user("well?"),
    ]


async def test_block_does_not_stop_a_chat_that_went_on(graft: Graft) -> None:
    history = await pending(graft, on_pending="block")
    assert isinstance(await graft.request({"contents": [*history, model("ok"), user("?")]}), Forward)


# --- a store that fails ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "wrapped"),
    [(target(), False), (STREAM, False), (target(Operation.STREAM, Framing.SSE, surface="codeassist"), True)],
)
async def test_a_store_that_fails_is_a_503_in_googles_shape(
    graft: Graft, monkeypatch: pytest.MonkeyPatch, to: Target, wrapped: bool
) -> None:
    history = await pending(graft)
    config = await graft.session_config()

    async def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("disk full")

    monkeypatch.setattr(graft.store, "look_up", fail)
    body: Document = {"contents": history}
    data = encode({"model": "m", "request": body} if to.request_path else body)
    outcome = await graft.grafter.request(to, config, data)
    assert isinstance(outcome, Reply)
    assert (outcome.status, outcome.content_type) == (503, "application/json; charset=UTF-8")
    document = decode(outcome.body)
    error = (document[0] if wrapped else document)["error"]
    assert error["status"] == "UNAVAILABLE"
    assert "the store does not answer" in error["message"]
    settings = graft.grafter.settings.model_copy(update={"on_store_error": "pass"})
    passing = Grafter(graft.store, settings, graft.grafter.metrics)
    assert await passing.request(to, config, data) == Forward(data)


# --- what nobody foresaw -----------------------------------------------------------------------------------------

MISTAKES = {
    "prefix": "addon.graft.prefixes.Prefixes.find",
    "look-up": "addon.graft.grafter.hits_of",
    "tools": "addon.core.tools.tool_plan.Toolbox.strip",
    "history": "addon.core.history.rewriting._Writer.user_turn",
    "body": "addon.surfaces.wire.assemble",
}


def mistaken(*_: object, **__: object) -> None:
    raise ZeroDivisionError("a mistake")


@pytest.mark.parametrize("where", MISTAKES)
@pytest.mark.parametrize(
    "to",
    [
        target(),
        STREAM,
        target(Operation.STREAM, Framing.ARRAY),
        target(Operation.STREAM, Framing.SSE, surface="codeassist"),
        target(Operation.COUNT, surface="vertex"),
        target(Operation.CACHE, model=""),
    ],
    ids=["json", "sse", "array", "code assist", "count", "cache"],
)
async def test_a_mistake_in_a_request_is_told_or_passed_over_and_leaves_nothing_behind(
    graft: Graft, monkeypatch: pytest.MonkeyPatch, to: Target, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    history = await pending(graft)
    body: Document = {"contents": history}
    data = encode({"model": "m", "request": body} if to.request_path else body)
    config = await graft.session_config()
    settings = graft.grafter.settings.model_copy(update={"on_store_error": "pass"})
    passing = Grafter(graft.store, settings, graft.grafter.metrics)
    fine = await graft.grafter.request(to, config, data)
    with monkeypatch.context() as patch:
        patch.setattr(MISTAKES[where], mistaken)
        assert await passing.request(to, config, data) == Forward(data)
        caplog.clear()
        outcome = await graft.grafter.request(to, config, data)
    assert isinstance(outcome, Reply)
    assert (outcome.status, outcome.content_type) == (500, "application/json; charset=UTF-8")
    document = decode(outcome.body)
    error = (document[0] if isinstance(document, list) else document)["error"]
    assert (error["status"], error["message"]) == (
        "INTERNAL",
        "toolgraft: a request could not be rewritten: ZeroDivisionError",
    )
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
    assert b'toolgraft_errors_total{kind="graft"} 2.0' in graft.grafter.metrics.render()
    after = await graft.grafter.request(to, config, data)
    assert isinstance(fine, Forward)
    assert isinstance(after, Forward)
    assert after.body == fine.body != data


async def test_a_mistake_while_a_sessions_tools_are_read_is_a_failure_of_the_graft(
    graft: Graft, monkeypatch: pytest.MonkeyPatch
) -> None:
    await graft.tools(WEATHER)
    monkeypatch.setattr("addon.graft.session_config.Toolbox", mistaken)
    with pytest.raises(GraftFailed, match="the session's tools could not be read: ZeroDivisionError"):
        await graft.grafter.session_config("default")


@pytest.mark.parametrize("name", [["x"], {"x": 1}, 1, None], ids=repr)
async def test_a_call_whose_name_is_no_text_is_no_error_of_the_proxy_s(graft: Graft, name: Any) -> None:
    await graft.tools(WEATHER)
    made, answered = {"functionCall": {"name": name}}, {"functionResponse": {"name": name, "response": {}}}
    outcome = await graft.request({"contents": [user("a"), model(made), user(answered)]})
    assert isinstance(outcome, Forward)
