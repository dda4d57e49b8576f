"""The declarations, the toolConfig and the tool names of a request."""

import tracemalloc
from typing import Any

import pytest

from addon.core.framing.documents import Document, decode, encode
from addon.core.model_names import Generation, generation, is_before
from addon.core.tools.tool_plan import Toolbox, ToolCounter, ToolPlan, cannot_use_functions, declared_names

F: Document = {"name": "f"}
G: Document = {"name": "g"}
BUILT_IN: Document = {"googleSearch": {}}
FLAG = "includeServerSideToolInvocations"
OLD, NEW = (2, 5), (3, 0)


def calling(mode: str | None = None, *allowed: str) -> Document:
    config: Document = {"mode": mode} if mode else {}
    return {"functionCallingConfig": {**config, **({"allowedFunctionNames": list(allowed)} if allowed else {})}}


def tools_of(plan: ToolPlan) -> Any:
    return decode(plan.tools) if plan.tools is not None else None


def config_of(plan: ToolPlan) -> Any:
    return decode(plan.tool_config) if plan.tool_config is not None else None


def kept(box: Toolbox, tools: Any, config: Any = None, model: Generation = NEW) -> ToolPlan:
    return box.keep(encode(tools) if tools else None, encode(config) if config else None, model)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemini-2.5-flash", (2, 5)),
        ("gemini-3-pro-preview", (3, 0)),
        ("gemini-3.5-flash", (3, 5)),
        ("models/gemini-2.0-flash-001", (2, 0)),
        ("gemini-flash-latest", None),
        ("123456", None),
        ("", None),
    ],
)
def test_a_models_generation_by_its_name(name: str, expected: Generation) -> None:
    assert generation(name) == expected


def test_a_model_without_a_version_counts_as_the_newest() -> None:
    assert not is_before(None, (9, 9))
    assert is_before((2, 5), (3, 0))
    assert not is_before((3, 0), (3, 0))


def test_strip_declares_the_toolset_and_nothing_else() -> None:
    plan = Toolbox([F, G], [], calling("ANY", "f")).strip(OLD)
    assert tools_of(plan) == [{"functionDeclarations": [F, G]}]
    assert config_of(plan) == calling("ANY", "f")
    assert plan.changes
    assert plan.names == {"f": "f", "g": "g"}
    assert plan.declared == {"f", "g"}


def test_an_empty_toolset_removes_tools_and_config() -> None:
    plan = Toolbox([], [], {**calling("ANY"), "retrievalConfig": {}}).strip(OLD)
    assert (plan.tools, plan.changes, plan.rewrites) == (None, True, False)
    assert config_of(plan) == {"retrievalConfig": {}}  # what speaks of functions goes


def test_a_plan_for_stripped_requests_is_made_once_per_generation() -> None:
    box = Toolbox([F])
    assert box.strip((2, 0)) is box.strip((2, 5))
    assert box.strip(None) is box.strip((3, 5))


@pytest.mark.parametrize("model", [OLD, NEW, None])
def test_built_ins_of_the_toolset_beside_its_functions(model: Generation) -> None:
    plan = Toolbox([F], [BUILT_IN], {FLAG: True}).strip(model)
    if model == OLD:
        assert tools_of(plan) == [{"functionDeclarations": [F]}]
        assert config_of(plan) is None
        assert "built-in" in plan.dropped
        assert not plan.hides_server_tools
    else:
        assert tools_of(plan) == [BUILT_IN, {"functionDeclarations": [F]}]
        assert config_of(plan) == {FLAG: True}
        assert plan.hides_server_tools
        assert plan.server_tools


def test_built_ins_alone_need_no_flag() -> None:
    plan = Toolbox([], [BUILT_IN]).strip(NEW)
    assert (tools_of(plan), config_of(plan), plan.rewrites) == ([BUILT_IN], None, False)


def test_keep_puts_the_toolsets_functions_behind_the_clients_tools() -> None:
    own = [{"function_declarations": [{"name": "own", "unknown": 1}]}]
    plan = kept(Toolbox([F]), own)
    assert tools_of(plan) == [*own, {"functionDeclarations": [F]}]
    assert plan.declared == {"own", "f"}
    assert plan.changes


def test_keep_with_nothing_to_add_changes_nothing() -> None:
    plan = kept(Toolbox(), [{"functionDeclarations": [F]}], calling("ANY"))
    assert not plan.changes


@pytest.mark.parametrize(
    ("own", "names"),
    [
        (["x"], {"f": "f"}),
        (["f"], {"f": "f_g2"}),
        (["f", "f_g2"], {"f": "f_g3"}),
    ],
)
def test_a_clash_renames_the_grafted_tool(own: list[str], names: dict[str, str]) -> None:
    plan = kept(Toolbox([F]), [{"functionDeclarations": [{"name": name} for name in own]}])
    assert plan.names == names


def test_new_names_are_unique_and_within_the_limit() -> None:
    long = "n" * 64
    box = Toolbox([{"name": long}, {"name": "a"}, {"name": "a_g2"}])
    plan = kept(box, [{"functionDeclarations": [{"name": long}, {"name": "a"}]}])
    assert plan.names == {long: "n" * 61 + "_g2", "a": "a_g3", "a_g2": "a_g2"}
    assert all(len(name) <= 64 for name in plan.names.values())


def test_a_long_name_is_shortened_the_same_way_each_time() -> None:
    long, other = "n" * 128, "n" * 127 + "m"
    box = Toolbox([{"name": long}, {"name": other}, {"name": "n" * 64}])
    names = box.strip(NEW).names
    assert names == kept(box, [{"functionDeclarations": [{"name": "own"}]}]).names
    assert len(set(names.values())) == 3
    assert all(len(used) <= 64 and used.startswith("n" * 55) for used in names.values())
    assert names["n" * 64] == "n" * 64
    assert list(box.strip(NEW, vertex=True).names.values()) == [long, other, "n" * 64]  # whose reference has 128
    taken = kept(box, [{"functionDeclarations": [{"name": names[long]}]}]).names
    assert taken[long] == names[long][:61] + "_g2"


def test_allowed_function_names_have_the_shortened_name() -> None:
    long = "n" * 65
    plan = Toolbox([{"name": long}], [], calling("ANY", long)).strip(NEW)
    assert config_of(plan) == calling("ANY", plan.names[long])


@pytest.mark.parametrize(
    ("own", "ours", "merged"),
    [
        (None, None, None),
        (calling("AUTO"), None, calling("AUTO")),
        (None, calling("ANY", "f"), calling("ANY", "f_g2")),
        (calling("ANY", "f"), calling("ANY", "f"), calling("ANY", "f", "f_g2")),
        (calling("ANY"), calling("ANY", "f"), calling("ANY")),
        (calling("NONE"), calling("ANY", "f"), calling("NONE")),
        (calling("VALIDATED", "f"), calling("AUTO"), calling("VALIDATED", "f")),
        ({"function_calling_config": {"mode": "any"}}, None, calling("any")),
        (None, calling("ANY", "gone"), calling("ANY")),
        (calling(None), None, None),
        ({"x": 1}, {"x": 2, "y": 3}, {"x": 1, "y": 3}),
        ({FLAG: False}, None, {FLAG: False}),
    ],
)
def test_tool_configs_merge(own: Any, ours: Any, merged: Any) -> None:
    plan = kept(Toolbox([F], [], ours), [{"functionDeclarations": [F]}], own)
    assert config_of(plan) == merged


@pytest.mark.parametrize("model", [OLD, NEW])
def test_the_clients_built_ins_keep_their_place(model: Generation) -> None:
    plan = kept(Toolbox([F]), BUILT_IN, None, model)
    if model == OLD:
        assert not plan.changes
        assert plan.names == {}
        assert plan.dropped
    else:
        assert tools_of(plan) == [BUILT_IN, {"functionDeclarations": [F]}]
        assert plan.hides_server_tools


def test_a_flag_that_the_client_set_itself_hides_nothing() -> None:
    plan = kept(Toolbox([F]), [BUILT_IN], {"include_server_side_tool_invocations": True})
    assert config_of(plan) == {FLAG: True}
    assert not plan.hides_server_tools
    assert plan.server_tools


@pytest.mark.parametrize("model", [NEW, None])
def test_a_service_that_does_not_know_the_flag_never_gets_it(model: Generation) -> None:
    """Vertex AI allows the tools together, and the flag is removed, whoever set it."""
    box = Toolbox([F], [BUILT_IN], {FLAG: True})
    plans = [box.strip(model, vertex=True)]
    for own_config in (None, {"include_server_side_tool_invocations": True}):
        config = encode(own_config) if own_config else None
        plans.append(box.keep(encode([{"codeExecution": {}}]), config, model, vertex=True))
    for plan in plans:
        assert {"functionDeclarations": [F]} in tools_of(plan)
        assert BUILT_IN in tools_of(plan)
        assert config_of(plan) is None
        assert not plan.hides_server_tools
        assert not plan.server_tools
    assert config_of(box.strip(model)) == {FLAG: True}


def test_the_toolsets_built_ins_join_the_clients_functions_and_are_hidden() -> None:
    plan = kept(Toolbox([], [BUILT_IN]), [{"functionDeclarations": [F]}])
    assert tools_of(plan) == [{"functionDeclarations": [F]}, BUILT_IN]
    assert plan.hides_server_tools
    assert plan.rewrites
    assert not kept(Toolbox([], [BUILT_IN]), [{"functionDeclarations": [F]}], None, OLD).changes


@pytest.mark.parametrize(
    ("config", "model", "cannot"),
    [
        (None, "gemini-2.5-flash", False),
        ({}, "", False),
        ({"temperature": 1}, "", False),
        ({"responseMimeType": "text/plain"}, "", False),
        ({"responseMimeType": ""}, "", False),
        ({"responseMimeType": None}, "", False),
        ({"responseMimeType": "Application/JSON"}, "", True),
        ({"response_mime_type": "text/x.enum"}, "", True),
        ({"responseSchema": {}}, "", True),
        ({"response_json_schema": {}}, "", True),
        ({"responseSchema": None}, "", False),
        ({"responseModalities": ["TEXT"]}, "", False),
        ({"responseModalities": ["text", "image"]}, "", True),
        ({"response_modalities": "AUDIO"}, "", True),
        ([], "", False),
        ({}, "gemini-2.5-flash-image", True),
        ({}, "gemini-2.5-flash-image-preview", True),
        ({}, "gemini-2.5-pro-preview-tts", True),
        ({}, "gemini-2.5-flash-native-audio-preview", True),
        ({}, "imagen-4", True),
        ({}, "gemini-imagery", False),
    ],
)
def test_requests_that_exclude_functions(config: Any, model: str, cannot: bool) -> None:
    assert cannot_use_functions(None if config is None else encode(config), model) is cannot


def test_large_configurations_of_clients_are_not_kept() -> None:
    tracemalloc.start()
    try:
        for number in range(40):
            assert cannot_use_functions(encode({"responseSchema": {"description": "x" * 50_000}, "seed": number}), "")
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()


def test_the_names_that_a_tool_declares_in_either_spelling() -> None:
    assert declared_names({"function_declarations": {"name": "a"}}) == ["a"]
    assert declared_names({"functionDeclarations": [F, {}, 1]}) == ["f"]
    assert declared_names(BUILT_IN) == []


def test_the_tools_of_a_request_are_counted() -> None:
    counter = ToolCounter()
    given: list[tuple[bytes | None, int]] = [
        (None, 0),
        (b"[]", 0),
        (b'[{"functionDeclarations": [{"name": "a"}, {"name": "b"}]}, {"googleSearch": {}}]', 3),
        (b'{"function_declarations": [{"name": "a"}], "codeExecution": null}', 1),
    ]
    for _ in range(2):
        for tools, number in given:
            assert counter.count(tools) == number
    for n in range(1000):
        assert counter.count(b'[{"functionDeclarations": [{"name": "%d"}]}]' % n) == 1
    assert len(counter._counts) <= 256
