"""The tools of a request that the grafter rewrites."""

import asyncio
from typing import Any

import pytest

from addon.core.framing.documents import Document, decode, encode
from addon.graft.exchange import Forward, Reply
from addon.surfaces.incoming import Operation, Target
from addon.surfaces.registry import match
from store.base import Store
from store.models import CachedTools
from tests.contents import call, model, response, user
from tests.graft.conftest import SEARCH, WEATHER, Graft, answer, target
from tests.graft.grafter_requests import OWN, SOON, answer_all

G3 = target(model="gemini-3-flash")


def declared(sent: Document) -> list[str]:
    return [d["name"] for tool in sent.get("tools", []) for d in tool.get("functionDeclarations", [])]


TOLD = [model("[Called get_weather with {}]"), user('[get_weather returned {"t":1}]')]


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
@pytest.mark.parametrize(("policy", "why"), [("fail", "was refused"), ("pass", "was passed on unchanged")])
async def test_bytes_that_are_not_understood_are_refused_or_go_on_untouched_with_one_warning(
    store: Store, caplog: pytest.LogCaptureFixture, body: bytes, policy: str, why: str
) -> None:
    graft = Graft(store, on_unread=policy)
    await graft.tools(WEATHER)
    for _ in range(2):
        outcome = await graft.request(body)
        if policy == "fail":
            assert isinstance(outcome, Reply)
            assert outcome.status == 400
        else:
            assert outcome == Forward(body)
    assert sum(why in record.message for record in caplog.records) == 1
