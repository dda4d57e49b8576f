"""The tools that a Live connection declares."""

import pytest

from addon.core.live import Frame, LiveActions, LiveMachine
from addon.core.tools.tool_plan import Toolbox
from tests.core.live_frames import (
    DECLARED,
    FREE,
    SETUP,
    Json,
    answer,
    call,
    frame,
    live,
    own_tools,
    passed,
    sent_responses,
)

GRAFTED: Json = {"functionDeclarations": DECLARED}
CASES: dict[str, tuple[bool, Json, Json]] = {
    "setup": (True, {"setup": {"model": "m"}}, {"setup": {"model": "m", "tools": [GRAFTED]}}),
    "setup strips": (
        True,
        {"setup": {"model": "m", "tools": own_tools("own"), "sessionResumption": {"handle": "h"}}},
        {"setup": {"model": "m", "sessionResumption": {"handle": "h"}, "tools": [GRAFTED]}},
    ),
    "setup keeps": (
        False,
        {"setup": {"tools": [*own_tools("own"), {"googleSearch": {}}]}},
        {"setup": {"tools": [*own_tools("own"), {"googleSearch": {}}, GRAFTED]}},
    ),
    "snake_case stays": (
        False,
        {"setup": {"system_instruction": {"parts": []}, "tools": [{"function_declarations": [{"name": "own"}]}]}},
        {
            "setup": {
                "system_instruction": {"parts": []},
                "tools": [{"function_declarations": [{"name": "own"}]}, GRAFTED],
            }
        },
    ),
    "a single object": (
        False,
        {"setup": {"tools": {"googleSearch": {}}}},
        {"setup": {"tools": [{"googleSearch": {}}, GRAFTED]}},
    ),
    "null": (True, {"setup": {"tools": None}}, {"setup": {"tools": [GRAFTED]}}),
    "contextUpdate": (
        True,
        {"contextUpdate": {"tools": {"tools": own_tools("own")}}},
        {"contextUpdate": {"tools": {"tools": [GRAFTED]}}},
    ),
    "contextUpdate in snake_case": (
        False,
        {"context_update": {"tools": {"tools": own_tools("own")}}},
        {"context_update": {"tools": {"tools": [*own_tools("own"), GRAFTED]}}},
    ),
    "contextUpdate behind a member without a value": (
        True,
        {"setup": None, "contextUpdate": {"tools": {"tools": own_tools("own")}}},
        {"contextUpdate": {"tools": {"tools": [GRAFTED]}}},
    ),
    "contextUpdate that clears": (
        False,
        {"contextUpdate": {"tools": {}, "systemInstruction": {"parts": [{"text": "é"}]}}},
        {"contextUpdate": {"tools": {"tools": [GRAFTED]}, "systemInstruction": {"parts": [{"text": "é"}]}}},
    ),
    "contextUpdate with the tools at once": (
        True,
        {"contextUpdate": {"tools": own_tools("own")}},
        {"contextUpdate": {"tools": [GRAFTED]}},
    ),
}


@pytest.mark.parametrize(("strips", "given", "expected"), CASES.values(), ids=CASES)
def test_the_toolset_is_declared_beside_or_in_place_of_the_clients_own(
    strips: bool, given: Json, expected: Json
) -> None:
    assert passed(live(strips=strips).from_client(frame(given))) == expected


@pytest.mark.parametrize(
    "given",
    [
        b'{"contextUpdate": {"systemInstruction": {}}}',
        b'{"setup": 1}',
        b'{"setup": null}',
        b'{"contextUpdate": null, "setup": null}',
        b'{"setup": {"tools": []}, "setup": {}}',
        b'{ "clientContent" : {"turnComplete":true, "new_field": "tools"} }\n',
        b"not JSON",
        b"\xff\xfe",
        b"[]",
        b"",
    ],
)
def test_a_frame_that_declares_no_tools_keeps_its_bytes(given: bytes) -> None:
    for text in (True, False):
        assert live().from_client(Frame(given, text)) == LiveActions(given)


def test_an_empty_toolset_removes_the_tools_and_keeps_a_setup_without_any() -> None:
    empty = LiveMachine(Toolbox(), {}, strips=True, passthrough=False, new_call_id=str)
    assert passed(empty.from_client(frame({"setup": {"model": "m", "tools": own_tools("own")}}))) == {
        "setup": {"model": "m"}
    }
    plain = frame(SETUP)
    assert empty.from_client(plain).forward is plain.data


def test_kept_tools_without_additions_keep_their_bytes() -> None:
    empty = LiveMachine(Toolbox(), {}, strips=False, passthrough=False, new_call_id=str)
    setup = frame({"setup": {"tools": own_tools("own")}})
    assert empty.from_client(setup).forward is setup.data


def test_a_tools_behavior_is_declared() -> None:
    made = LiveMachine(Toolbox(DECLARED), {"wait": FREE}, strips=True, passthrough=False, new_call_id=str)
    (tool,) = passed(made.from_client(frame(SETUP)))["setup"]["tools"]
    assert tool["functionDeclarations"] == [
        {"name": "look"},
        {"name": "wait", "behavior": "NON_BLOCKING"},
        {"name": "tell"},
    ]
    assert DECLARED[1] == {"name": "wait"}


def test_the_model_is_the_setups() -> None:
    assert live().model == "gemini-live-2.5-flash-preview"


def test_a_name_that_clashes_is_mapped_there_and_back() -> None:
    made = live(strips=False, own=own_tools("look"))
    outcome = made.from_server(call("look", "look_g2"))
    assert [one["name"] for one in passed(outcome)["toolCall"]["functionCalls"]] == ["look"]
    assert outcome.step is not None
    assert [(one.call_id, one.name, one.gemini_id) for one in outcome.step.calls] == [("c1", "look", "f2")]
    assert [part["functionCall"]["name"] for part in outcome.step.parts] == ["look", "look"]
    assert [(slot.name, slot.call_id) for slot in outcome.step.slots] == [("look", None), ("look", "c1")]
    assert sent_responses(made.respond("c1", {"response": {"a": 1}})) == [[answer("f2", "look_g2", {"a": 1})]]


def test_a_context_update_changes_whose_a_name_is() -> None:
    made = live(strips=False)
    assert made.from_server(call("look")).step is not None
    made.from_client(frame({"contextUpdate": {"tools": {"tools": own_tools("look")}}}))
    own = call("look", start=2)
    assert made.from_server(own) == LiveActions(own.data)
    assert sent_responses(made.respond("c1", {"response": {}})) == [[answer("f1", "look", {})]]
