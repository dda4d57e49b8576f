"""Steps as Contents and back, all forms of inputs, and the part that stands for a stored interaction."""

from typing import Any

import pytest

from addon.core.dialects import interaction_requests as own
from addon.core.dialects.interaction_requests import gemini_request
from addon.core.framing.documents import Document, Malformed, decode, encode
from addon.core.history.request import parse
from addon.core.history.visible import visible_digest

Json = dict[str, Any]

SEARCH = {"type": "google_search_call", "id": "s1", "arguments": {"queries": ["a"]}, "signature": "c2ln"}
STEPS: dict[str, tuple[Json, str, list[Json]]] = {
    "the user's words": (
        {"type": "user_input", "content": [{"type": "text", "text": "hi"}]},
        "user",
        [{"text": "hi"}],
    ),
    "the model's": (
        {"type": "model_output", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        "model",
        [{"text": "a"}, {"text": "b"}],
    ),
    "an image": (
        {"type": "user_input", "content": [{"type": "image", "data": "QUJD", "mime_type": "image/png"}]},
        "user",
        [{"inlineData": {"mimeType": "image/png", "data": "QUJD"}}],
    ),
    "an image that nobody said the kind of": (
        {"type": "user_input", "content": [{"type": "image", "uri": "gs://b/o"}]},
        "user",
        [{"fileData": {"mimeType": "image/*", "fileUri": "gs://b/o"}}],
    ),
    "a document": (
        {"type": "user_input", "content": [{"type": "document", "uri": "f", "mime_type": "application/pdf"}]},
        "user",
        [{"fileData": {"mimeType": "application/pdf", "fileUri": "f"}}],
    ),
    "what there is no word for": (
        {"type": "user_input", "content": [{"type": "hologram", "data": "x"}]},
        "user",
        [{"content": {"type": "hologram", "data": "x"}}],
    ),
    "a signed thought": (
        {"type": "thought", "signature": "c2ln"},
        "model",
        [{"text": "", "thought": True, "thoughtSignature": "c2ln"}],
    ),
    "a thought that is told": (
        {"type": "thought", "signature": "c2ln", "summary": [{"type": "text", "text": "so"}]},
        "model",
        [{"text": "so", "thought": True, "thoughtSignature": "c2ln"}],
    ),
    "a call": (
        {"type": "function_call", "id": "c1", "name": "f", "arguments": {"a": 1}},
        "model",
        [{"functionCall": {"id": "c1", "name": "f", "args": {"a": 1}, "calledAs": "f"}}],
    ),
    "a built-in tool's call": (
        SEARCH,
        "model",
        [{"toolCall": {"toolType": "google_search_call", "id": "s1", "args": {"queries": ["a"]}, "step": SEARCH}}],
    ),
}


@pytest.mark.parametrize(("step", "role", "parts"), STEPS.values(), ids=STEPS)
def test_a_step_becomes_a_content_and_back(step: Json, role: str, parts: list[Json]) -> None:
    content = own.content_of(step)
    assert content == {"role": role, "parts": parts}
    assert own.steps_of(content) == [step]


RESULTS: list[tuple[Json, Json]] = [
    ({"result": {"a": 1}}, {"a": 1}),
    ({"result": '{"a": 1}'}, {"a": 1}),
    ({"result": "fine"}, {"result": "fine"}),
    ({"result": [{"type": "text", "text": "t"}]}, {"result": [{"type": "text", "text": "t"}]}),
    ({"result": "bad", "is_error": True}, {"error": "bad"}),
    ({"result": {"error": "bad"}, "is_error": True}, {"error": "bad"}),
]


@pytest.mark.parametrize(("members", "response"), RESULTS)
def test_a_result_becomes_a_response_and_back(members: Json, response: Json) -> None:
    step = {"type": "function_result", "call_id": "c1", "name": "f", **members}
    content = own.content_of(step)
    (part,) = content["parts"]
    assert content["role"] == "user"
    assert part["functionResponse"]["response"] == response
    assert own.steps_of(content) == [step]


def test_a_result_takes_the_name_and_the_id_of_its_call() -> None:
    (part,) = own.parts_of_step({"type": "function_result", "call_id": "c1", "result": "fine"})
    part["functionResponse"] |= {"id": "c1", "name": "f"}
    (step,) = own.steps_of({"role": "user", "parts": [part]})
    assert step == {"type": "function_result", "call_id": "c1", "name": "f", "result": "fine"}


PNG = {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}


@pytest.mark.parametrize(
    ("response", "text"),
    [({"result": "Here."}, "Here."), ({"result": 1}, '{"result":1}'), ({"a": 1}, '{"a":1}')],
)
def test_a_result_with_images_and_files_is_a_list_of_contents(response: Json, text: str) -> None:
    parts = [
        PNG,
        {"inlineData": {"mimeType": "application/pdf", "data": "JVBERg=="}},
        {"inlineData": {"mimeType": "text/plain", "data": "SGkh"}},
        {"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}},
    ]
    answer = {"functionResponse": {"id": "c1", "name": "f", "response": response, "parts": parts}}
    (step,) = own.steps_of({"role": "user", "parts": [answer]})
    assert step == {
        "type": "function_result",
        "call_id": "c1",
        "name": "f",
        "result": [
            {"type": "text", "text": text},
            {"type": "image", "data": "iVBORw==", "mime_type": "image/png"},
            {"type": "document", "data": "JVBERg==", "mime_type": "application/pdf"},
            {"type": "text", "text": "Hi!"},
            {"type": "audio", "data": "AAAA", "mime_type": "audio/wav"},
        ],
    }


def test_a_clients_result_with_an_image_has_it_as_a_part_and_stays_as_it_is() -> None:
    contents = [{"type": "text", "text": "t"}, {"type": "image", "data": "iVBORw==", "mime_type": "image/png"}]
    step = {"type": "function_result", "call_id": "c1", "name": "f", "result": contents}
    content = own.content_of(step)
    given = content["parts"][0]["functionResponse"]
    assert given["response"] == {"result": [contents[0], "[part 1: image/png]"]}
    assert given["parts"] == [PNG]
    assert own.steps_of(content) == [step]


@pytest.mark.parametrize(("response", "failed"), [({"error": "bad"}, True), ({"error": "bad", "a": 1}, False)])
def test_a_response_with_only_an_error_is_an_error(response: Json, failed: bool) -> None:
    answer = {"functionResponse": {"id": "c1", "name": "f", "response": response}}
    (step,) = own.steps_of({"role": "user", "parts": [answer]})
    assert step.get("is_error", False) is failed
    assert step["result"] == response


def test_adjacent_texts_are_one_step_and_a_dummy_signature_is_dropped() -> None:
    thought = {"text": "", "thought": True, "thoughtSignature": "skip_thought_signature_validator"}
    call = {"functionCall": {"name": "f"}}
    steps = own.steps_of({"role": "model", "parts": [thought, {"text": "a"}, {"text": "b"}, call, {"text": "c"}]})
    assert [step["type"] for step in steps] == ["thought", "model_output", "function_call", "model_output"]
    assert "signature" not in steps[0]
    assert [content["text"] for content in steps[1]["content"]] == ["a", "b"]
    assert steps[2]["arguments"] == {}


INPUTS: dict[str, tuple[Any, list[Json]]] = {
    "nothing": (None, []),
    "words": ("hi", [{"type": "user_input", "content": [{"type": "text", "text": "hi"}]}]),
    "a content": (
        {"type": "text", "text": "hi"},
        [{"type": "user_input", "content": [{"type": "text", "text": "hi"}]}],
    ),
    "contents": (
        [{"type": "text", "text": "hi"}, {"type": "image", "uri": "u"}],
        [{"type": "user_input", "content": [{"type": "text", "text": "hi"}, {"type": "image", "uri": "u"}]}],
    ),
    "a step": ({"type": "thought"}, [{"type": "thought"}]),
    "steps": ([{"type": "user_input"}, SEARCH], [{"type": "user_input"}, SEARCH]),
    "steps as they were once": ([{"role": "model", "content": []}], [{"role": "model", "content": []}]),
}


@pytest.mark.parametrize(("given", "steps"), INPUTS.values(), ids=INPUTS)
def test_an_input_is_a_list_of_steps(given: Any, steps: list[Json]) -> None:
    assert own.input_steps(given) == steps


def test_an_input_without_steps_or_contents_is_malformed() -> None:
    with pytest.raises(Malformed, match="neither a step nor a content"):
        own.input_steps([1])


def test_the_part_for_an_interaction_is_never_visible() -> None:
    mark = own.mark_part("v1_x")
    assert own.marked_id({"role": "model", "parts": [{"text": "a"}, mark]}) == "v1_x"
    assert own.marked_id({"role": "model", "parts": [{"text": "a"}]}) is None
    assert own.steps_of({"role": "model", "parts": [mark]}) == []
    assert visible_digest([mark, {"text": "a"}]) == visible_digest([{"text": "a"}])


def test_the_original_names_of_calls() -> None:
    content = own.content_of({"type": "function_call", "id": "c1", "name": "f_g2", "arguments": {}})
    content["parts"][0]["functionCall"]["name"] = "f"
    assert own.call_names(content) == {"c1": "f_g2"}
    assert own.call_names({"role": "model", "parts": [{"functionCall": {"name": "f"}}]}) == {}


def test_a_kept_history_is_known_by_its_id_alone() -> None:
    def chain(interaction: str) -> bytes:
        request = parse(encode({"contents": own.kept_history(interaction)}))
        request.history.identify(request.body)
        return request.history.turns[-1].chain

    assert chain("v1_x") == chain("v1_x")
    assert chain("v1_x") != chain("v1_y")


PIECES: list[tuple[list[Json], Json]] = [
    ([{"type": "arguments_delta", "arguments": '{"a":'}, {"type": "arguments_delta", "arguments": "1}"}], {"a": 1}),
    ([{"type": "arguments_delta"}], {}),
    ([{"type": "arguments_delta", "arguments": {"a": 1}}], {"a": 1}),
    ([{"type": "arguments_delta", "arguments": "{"}], {"arguments": "{"}),
    ([{"type": "arguments_delta", "arguments": "[1]"}], {"arguments": "[1]"}),
]


@pytest.mark.parametrize(("deltas", "arguments"), PIECES)
def test_the_arguments_of_a_call_arrive_in_pieces(deltas: list[Json], arguments: Json) -> None:
    step: Json = {"type": "function_call", "id": "c1", "name": "f", "arguments": {}}
    initial = dict(step)
    for delta in deltas:
        step = own.with_delta(step, delta)
    assert own.completed_step(step) == {**initial, "arguments": arguments}


def test_the_pieces_of_a_built_in_tools_step_are_its_members() -> None:
    step = own.with_delta(
        {"type": "google_search_call", "id": "s1"}, {"type": "google_search_call", "arguments": {"q": 1}}
    )
    assert own.completed_step(step) == {"type": "google_search_call", "id": "s1", "arguments": {"q": 1}}


DELTAS: list[tuple[Json, list[Json]]] = [
    ({"type": "text", "text": "a"}, [{"text": "a"}]),
    ({"type": "thought_signature", "signature": "c2ln"}, [{"text": "", "thought": True, "thoughtSignature": "c2ln"}]),
    ({"type": "thought_summary", "content": {"type": "text", "text": "so"}}, [{"text": "so", "thought": True}]),
    (
        {"type": "image", "data": "QQ", "mime_type": "image/png"},
        [{"inlineData": {"mimeType": "image/png", "data": "QQ"}}],
    ),
    ({"type": "text_annotation_delta", "annotations": []}, []),
]


@pytest.mark.parametrize(("delta", "parts"), DELTAS)
def test_the_parts_of_a_delta(delta: Json, parts: list[Json]) -> None:
    assert own.parts_of_delta(delta) == parts


CONFIGS: list[tuple[Json, Json | None]] = [
    ({}, None),
    ({"response_format": {"type": "text", "mime_type": "text/plain"}}, None),
    (
        {"response_format": {"type": "text", "mime_type": "application/json"}},
        {"responseFormat": {"type": "text", "mime_type": "application/json"}},
    ),
    ({"response_format": [{"type": "image"}]}, {"responseFormat": {"type": "image"}}),
    ({"response_mime_type": "application/json"}, {"responseMimeType": "application/json"}),
    ({"response_modalities": ["audio"]}, {"responseModalities": ["audio"]}),
]


@pytest.mark.parametrize(("given", "config"), CONFIGS)
def test_options_that_exclude_functions_are_converted(given: Json, config: Json | None) -> None:
    assert decode(gemini_request(given, None, [])).get("generationConfig") == config


def test_a_request_in_geminis_form() -> None:
    given: Json = {
        "model": "m",
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "generation_config": {"tool_choice": "any"},
        "cached_content": "cachedContents/c",
    }
    steps = own.input_steps("hi")
    assert decode(gemini_request(given, "v1_x", steps)) == {
        "contents": [*own.kept_history("v1_x"), {"role": "user", "parts": [{"text": "hi"}]}],
        "model": "m",
        "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": {"type": "object"}}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
        "cachedContent": "cachedContents/c",
    }


def test_pieces_of_arguments_are_joined_at_the_end_of_their_step() -> None:
    step: Document = {"type": "function_call", "id": "c", "name": "f"}
    given = dict(step)
    growing = own.with_delta(step, {"type": "arguments_delta", "arguments": '{"a": "'})
    assert step == given, "what is given is not changed"
    for _ in range(3):
        assert own.with_delta(growing, {"type": "arguments_delta", "arguments": "x"}) is growing
    whole = own.completed_step(own.with_delta(growing, {"type": "arguments_delta", "arguments": '"}'}))
    assert whole == {**step, "arguments": {"a": "xxx"}}
