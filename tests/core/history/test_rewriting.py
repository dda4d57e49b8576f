"""Rewriting of histories: an example for each rule, and properties over realistic chats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from addon.core.framing.documents import Document, decode, encode
from addon.core.history.placeholder import Placeholder
from addon.core.history.request import Prefix, Request, assemble, parse
from addon.core.history.rewriting import DUMMY_SIGNATURE, NO_RESULT, RewriteRules, rewrite
from addon.core.history.steps import CallSlot, TrueStep, TrueTurn
from addon.core.history.turns import HistoryTurn, visible_digest
from addon.core.tools.tool_plan import Generation, ToolPlan
from tests.contents import call, model, response, user

TEMPLATE = Placeholder("Tool call completed: {names} [{turn_id}]")
NAMES = {"get_weather": "get_weather", "search": "search"}


def turn_id(n: int) -> str:
    return f"turn_{n:016x}"


def plan(names: Mapping[str, str] = NAMES, own: Sequence[str] = (), *, server_tools: bool = False) -> ToolPlan:
    declared = frozenset([*names.values(), *own])
    return ToolPlan(b"[]", None, True, names, declared, server_tools=server_tools)


def rules(model: Generation = (2, 5), *, strip: bool = True, ids: bool = True, **kwargs: Any) -> RewriteRules:
    return RewriteRules(plan(**kwargs), strip, model, TEMPLATE, True, ids)


def without_functions(*, strip: bool = True, own: Sequence[str] = ()) -> RewriteRules:
    """The rules of a request that cannot use functions."""
    nothing = ToolPlan(None, None, strip, {}, frozenset(own), grafts=False)
    return RewriteRules(nothing, strip, (2, 5), TEMPLATE, only_known=True)


def true_turn(n: int, *parts: str | Document, answers: Sequence[Any] = (), **kwargs: Any) -> TrueTurn:
    """A true turn of one step. `answers`: the response for each grafted call, None if pending, "own" for the client's
    own call."""
    content = model(*parts)
    calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
    known = [*answers, *[{"result": c["name"]} for c in calls[len(answers) :]]]
    slots = [
        CallSlot(c["name"], None if answer == "own" else f"call_{n}_{at}")
        for at, (c, answer) in enumerate(zip(calls, known, strict=True))
    ]
    by_id = {slot.call_id: answer for slot, answer in zip(slots, known, strict=True) if slot.call_id}
    if "visible_text" not in kwargs and not kwargs.get("passthrough") and by_id and len(by_id) == len(slots):
        text = "".join(part.get("text", "") for part in content["parts"])
        kwargs["visible_text"] = TEMPLATE.after(text, [s.name for s in slots], turn_id(n))
        kwargs["visible_text"] = (text + kwargs["visible_text"]).strip()
    return TrueTurn(turn_id(n), [TrueStep(content, tuple(slots))], by_id, **kwargs)


def visible_turn(true: TrueTurn) -> Document:
    return model(true.visible_text)


def rewritten(
    contents: Sequence[Document], hits: Mapping[int, TrueTurn | Sequence[TrueTurn]], by: RewriteRules | None = None
) -> list[Document]:
    request = parse(encode({"contents": list(contents)}))
    request.history.identify(request.body)
    listed = {at: (true,) if isinstance(true, TrueTurn) else tuple(true) for at, true in hits.items()}
    pieces = rewrite(request.body, request.history, listed, by or rules())
    result = decode(assemble(request, {}, pieces))["contents"]
    assert isinstance(result, list)
    return result


# --- a placeholder ----------------------------------------------------------------------------------------------


def test_a_placeholder_becomes_the_calls_and_their_responses_before_the_clients_own_text() -> None:
    true = true_turn(1, call("get_weather", "c2ln", id="x1"), call("search", id="x2"))
    out = rewritten([user("hi"), visible_turn(true), user("and?")], {1: true})
    assert out == [
        user("hi"),
        model(call("get_weather", "c2ln", id="x1"), call("search", id="x2")),
        user(response("get_weather", id="x1"), response("search", id="x2")),
        user("and?"),
    ]


def test_text_before_the_calls_occurs_once() -> None:
    true = true_turn(1, "Let me look.", call())
    assert "Let me look.\n\nTool call completed" in true.visible_text
    out = rewritten([user("hi"), visible_turn(true), user("and?")], {1: true})
    assert out[1] == model("Let me look.", call())


def test_a_pending_call_gets_an_error_beside_an_answered_one_until_its_result_arrives() -> None:
    parts = (call("get_weather"), call("search"))
    early, late = true_turn(1, *parts, answers=[{"t": 1}, None]), true_turn(1, *parts, answers=[{"t": 1}, {"s": 2}])
    history = [user("hi"), visible_turn(early), user("and?")]
    first, then = rewritten(history, {1: early}), rewritten(history, {1: late})
    assert first[2]["parts"] == [response("get_weather", {"t": 1}), response("search", NO_RESULT)]
    assert then[2]["parts"] == [response("get_weather", {"t": 1}), response("search", {"s": 2})]


def test_the_last_step_keeps_its_text_without_results_and_an_earlier_step_is_rewritten() -> None:
    true = true_turn(1, call(), answers=[None])
    history = [user("hi"), visible_turn(true), user("and?")]
    assert rewritten(history, {1: true}) == history
    longer = [*history, model("Well."), user("so?")]
    assert rewritten(longer, {1: true})[1:3] == [model(call()), user(response(value=NO_RESULT))]


def test_a_history_that_begins_with_the_placeholder_stays() -> None:
    true = true_turn(1, call())
    history = [visible_turn(true), user("and?")]
    assert rewritten(history, {0: true}) == history


def test_a_repeated_placeholder_vanishes_and_the_user_turns_around_it_join() -> None:
    true = true_turn(1, call())
    out = rewritten(
        [user("hi"), visible_turn(true), user("and?"), visible_turn(true), user("now?")], {1: true, 3: true}
    )
    assert out == [user("hi"), model(call()), user(response()), user("and?"), user("now?")]


def test_placeholders_joined_with_other_text_in_one_run_are_expanded_in_place() -> None:
    one, two = true_turn(1, call("get_weather")), true_turn(2, "Then.", call("search"))
    run = [
        model("Before. "),
        visible_turn(one),
        model("\nThen.\n\n" + TEMPLATE.text(["search"], turn_id(2)) + " After."),
    ]
    out = rewritten([user("hi"), *run, user("?")], {1: (one, two)})
    assert out == [
        user("hi"),
        model("Before."),
        model(call("get_weather")),
        user(response("get_weather")),
        model("Then.", call("search")),
        user(response("search")),
        model("After."),
        user("?"),
    ]


def test_an_id_in_a_run_that_the_ledger_does_not_know_stays_text() -> None:
    one = true_turn(1, call())
    other = TEMPLATE.text(["search"], turn_id(9))
    out = rewritten([user("hi"), model(one.visible_text + "\n" + other), user("?")], {1: one})
    assert out[-2] == model(other)


def test_the_clients_own_calls_in_a_run_with_a_placeholder_stay_beside_their_responses() -> None:
    one = true_turn(1, call())
    history = [user("hi"), visible_turn(one), model(call("own", id="o")), user(response("own", id="o"), "?")]
    kept = rewritten(history, {1: one}, rules(strip=False, own=["own"]))
    assert kept == [user("hi"), model(call()), user(response()), *history[2:]]
    stripped = rewritten(history, {1: one})
    assert all("functionCall" not in part for content in stripped[3:] for part in content["parts"])


def test_a_text_that_differs_from_the_visible_one_is_kept() -> None:
    true = true_turn(1, "Let me look.", call())
    edited = "Edited by hand.\n\n" + TEMPLATE.text(["get_weather"], turn_id(1))
    out = rewritten([user("hi"), model(edited), user("?")], {1: true})
    assert out[1:3] == [model("Edited by hand."), model("Let me look.", call())]


def test_a_bare_placeholder_is_replaced_whole() -> None:
    true = true_turn(1, call())
    assert rewritten([user("hi"), model("Tool call completed"), user("?")], {1: true})[1] == model(call())


def test_calls_of_a_tool_that_is_no_longer_declared_become_text() -> None:
    true = true_turn(1, call("gone", args={"a": 1}), call("search"))
    out = rewritten([user("hi"), visible_turn(true), user("?")], {1: true})
    assert out[1] == model('[Called gone with {"a":1}]', "[Called search with {}]")
    assert out[2] == user('[gone returned {"result":"gone"}]', '[search returned {"result":"search"}]')


@pytest.mark.parametrize("strip", [True, False])
def test_without_functions_known_results_become_text_and_other_turns_stay_visible(strip: bool) -> None:
    known = true_turn(1, "Let me look.", call(signature="c2ln"), answers=[{"t": 1}])
    half = true_turn(2, call(), call("search"), answers=[{"t": 1}, None])
    history = [user("hi"), visible_turn(known), user("and?"), visible_turn(half), user("so?")]
    assert rewritten(history, {1: known, 3: half}, without_functions(strip=strip)) == [
        user("hi"),
        model("Let me look.", "[Called get_weather with {}]"),
        user('[get_weather returned {"t":1}]'),
        *history[2:],
    ]


@pytest.mark.parametrize("strip", [True, False])
def test_without_functions_a_whole_loop_becomes_text(strip: bool) -> None:
    steps = [
        TrueStep(model("Hm.", call(args={"n": 1})), (CallSlot("get_weather", "a"),)),
        TrueStep(model(call("search")), (CallSlot("search", "b"),)),
        TrueStep(model("Cold."), ()),
    ]
    true = TrueTurn(turn_id(1), steps, {"a": {"t": 1}, "b": {"s": 2}}, visible_text="Hm.Cold.")
    history = [user("hi"), model("Hm.Cold."), user("so?")]
    assert rewritten(history, {1: true}, without_functions(strip=strip)) == [
        user("hi"),
        model("Hm.", '[Called get_weather with {"n":1}]'),
        user('[get_weather returned {"t":1}]'),
        model("[Called search with {}]"),
        user('[search returned {"s":2}]'),
        model("Cold."),
        user("so?"),
    ]
    late = TrueTurn(turn_id(1), steps, {"a": {"t": 1}, "b": None}, visible_text="Hm.Cold.")
    assert rewritten(history, {1: late}, without_functions(strip=strip)) == history


def test_without_functions_a_mixed_step_becomes_text_once_its_results_are_known() -> None:
    own, by = {"functionCall": {"name": "own", "args": {}}}, without_functions(strip=False, own=["own"])
    history = [user("hi"), model(own), user(response("own", {"o": 1}), "so?")]
    pending = true_turn(1, call(), own, answers=[None, "own"])
    assert rewritten(history, {1: pending}, by) == history
    known = true_turn(1, call(), own, answers=[{"t": 1}, "own"])
    assert rewritten(history, {1: known}, by) == [
        user("hi"),
        model("[Called get_weather with {}]", "[Called own with {}]"),
        user('[get_weather returned {"t":1}]', '[own returned {"o":1}]'),
        user("so?"),
    ]


def test_without_functions_invalid_calls_become_text_even_without_results() -> None:
    true = true_turn(1, call(), answers=[None], passthrough=True)
    history = [user("hi"), model(call()), user("so?")]
    assert rewritten(history, {1: true}, without_functions(strip=False)) == [
        user("hi"),
        model("[Called get_weather with {}]"),
        user('[get_weather returned {"error":"no result"}]'),
        user("so?"),
    ]


def test_calls_go_under_the_names_of_this_request() -> None:
    true = true_turn(1, call("get_weather"))
    out = rewritten(
        [user("hi"), visible_turn(true), user("?")], {1: true}, rules(names={"get_weather": "get_weather_g2"})
    )
    assert out[1:3] == [model(call("get_weather_g2")), user(response("get_weather_g2", {"result": "get_weather"}))]


def test_an_api_version_without_ids_gets_none() -> None:
    true = true_turn(1, call(id="x1"))
    out = rewritten([user("hi"), visible_turn(true), user("?")], {1: true}, rules(ids=False))
    assert out[1:3] == [model(call()), user(response())]


def test_a_true_turn_is_written_anew_if_names_model_or_ids_differ() -> None:
    true = true_turn(1, call(id="x1"))
    history = [user("hi"), visible_turn(true), user("?")]
    first = rewritten(history, {1: true})
    assert rewritten(history, {1: true}, rules(ids=False)) != first
    assert rewritten(history, {1: true}, rules(names={"get_weather": "w"})) != first
    assert rewritten(history, {1: true}, rules(model=(3, 5))) != first
    assert rewritten(history, {1: true}) == first


@pytest.mark.parametrize(
    ("model_version", "later", "signed"),
    [((2, 5), False, False), ((3, 0), False, True), ((3, 0), True, False), ((3, 5), True, True), (None, True, True)],
)
def test_a_dummy_signature_is_added_only_if_gemini_refuses_the_call_without(
    model_version: Generation, later: bool, signed: bool
) -> None:
    true = true_turn(1, call("get_weather"), call("own"), answers=[{"t": 1}, "own"])
    history = [user("hi"), model(call("own")), user(response("own"))]
    if later:
        history += [model("done"), user("next")]
    by = rules(model_version, strip=False, own=["own"])
    for _ in range(2):
        parts = rewritten(history, {1: true}, by)[1]["parts"]
        assert [part.get("thoughtSignature") for part in parts] == [DUMMY_SIGNATURE if signed else None, None]


def test_a_dummy_for_the_current_turn_is_not_remembered_for_later_ones() -> None:
    true = true_turn(1, call())
    now, later = [user("hi"), visible_turn(true)], [user("hi"), visible_turn(true), user("next")]
    assert "thoughtSignature" in rewritten(now, {1: true}, rules((3, 0)))[1]["parts"][0]
    assert "thoughtSignature" not in rewritten(later, {1: true}, rules((3, 0)))[1]["parts"][0]


# --- hidden server tools ------------------------------------------------------------------------------------------

SEARCHED = {"toolCall": {"toolType": "GOOGLE_SEARCH", "id": "s", "args": {"q": 1}}, "thoughtSignature": "c2ln"}
RESULTS = {"toolResponse": {"toolType": "GOOGLE_SEARCH", "id": "s", "response": {"r": 2}}}


def test_hidden_server_tool_parts_are_restored_only_if_the_request_may_hold_them() -> None:
    true = true_turn(1, SEARCHED, RESULTS, "Found.", visible_text="Found.")
    history = [user("hi"), model("Found."), user("?")]
    assert rewritten(history, {1: true}, rules(server_tools=True))[1] == model(SEARCHED, RESULTS, "Found.")
    assert rewritten(history, {1: true}) == history


def test_hidden_server_tool_parts_are_restored_in_a_turn_with_the_clients_own_calls() -> None:
    true = true_turn(1, SEARCHED, RESULTS, call("own"), answers=["own"])
    history = [user("hi"), model(call("own")), user(response("own"))]
    out = rewritten(history, {1: true}, rules(strip=False, own=["own"], server_tools=True))
    assert out == [user("hi"), model(SEARCHED, RESULTS, call("own")), history[2]]
    assert rewritten(history, {1: true}, rules(strip=False, own=["own"]))[1]["parts"][-1] == call("own")


def test_server_tool_parts_beside_calls_become_text_if_the_request_may_not_hold_them() -> None:
    true = true_turn(1, SEARCHED, call())
    history = [user("hi"), visible_turn(true), user("?")]
    assert rewritten(history, {1: true}, rules(server_tools=True))[1] == model(SEARCHED, call())
    assert rewritten(history, {1: true})[1] == model('[Used GOOGLE_SEARCH with {"q":1}]', call())


# --- shared steps ------------------------------------------------------------------------------------------------


def test_a_mixed_step_is_restored_whole_with_both_sides_responses_in_call_order() -> None:
    true = true_turn(1, call("own", "c2ln", id="a"), call("get_weather", id="b"), answers=["own", {"t": 1}])
    history = [user("hi"), model(call("own", "c2ln", id="a")), user("By the way", response("own", id="a"))]
    out = rewritten(history, {1: true}, rules(strip=False, own=["own"]))
    assert out == [
        user("hi"),
        model(call("own", "c2ln", id="a"), call("get_weather", id="b")),
        user(response("own", id="a"), response("get_weather", {"t": 1}, id="b")),
        user("By the way"),
    ]


def test_calls_in_a_history_that_the_service_keeps_get_their_responses_whatever_is_declared() -> None:
    """The client's turn only names the service's history, so it holds no call to match or to turn into text."""
    named = [user(""), model("an id"), user(response("own", {"r": 1}, id="c2"), "and?")]
    mixed = true_turn(1, call("gone", id="c1"), call("own", id="c2"), answers=[None, "own"])
    kept = rules(strip=False)._replace(keep_unanswered=False, keeps_history=True)
    content, answered, words = rewritten(named, {1: mixed}, kept)[1:]
    assert content == mixed.steps[0].content
    assert answered["parts"] == [response("gone", NO_RESULT, id="c1"), response("own", {"r": 1}, id="c2")]
    assert words == user("and?")
    unanswered = true_turn(2, call("gone", id="c1"), answers=[None])
    assert rewritten([*named[:2], user("and?")], {1: unanswered}, kept)[2] == user(response("gone", NO_RESULT, id="c1"))


def test_a_mixed_step_is_restored_even_without_answers() -> None:
    true = true_turn(1, call("get_weather"), call("own"), answers=[None, "own"])
    out = rewritten([user("hi"), model(call("own")), user("?")], {1: true}, rules(strip=False, own=["own"]))
    assert out[1:] == [
        model(call("get_weather"), call("own")),
        user(response("get_weather", NO_RESULT), response("own", NO_RESULT)),
        user("?"),
    ]


def test_a_mixed_step_of_a_stripped_client_tool_becomes_text() -> None:
    true = true_turn(1, call("get_weather"), call("own"), answers=[{"t": 1}, "own"])
    out = rewritten([user("hi"), model(call("own")), user(response("own"))], {1: true})
    assert out[1:] == [
        model("[Called get_weather with {}]", "[Called own with {}]"),
        user('[get_weather returned {"t":1}]', '[own returned {"result":"own"}]'),
    ]


def test_a_step_passed_through_and_answered_stays_unchanged() -> None:
    true = true_turn(1, call(id="a"), passthrough=True, answers=[{"other": 1}])
    history = [user("hi"), model(call(id="a")), user(response(id="a"))]
    assert rewritten(history, {1: true}) == history


def test_text_before_the_clients_responses_moves_behind_them() -> None:
    true = true_turn(1, call(), passthrough=True)
    out = rewritten([user("hi"), model(call()), user("By the way", response())], {1: true})
    assert out[1:] == [model(call()), user(response()), user("By the way")]


def test_a_response_that_the_client_lacks_is_inserted_and_its_own_are_put_in_call_order() -> None:
    true = true_turn(1, call("get_weather"), call("search"), passthrough=True, answers=[{"t": 1}, None])
    step = model(call("get_weather"), call("search"))
    out = rewritten([user("hi"), step, user("text", response("search"))], {1: true})
    assert out[1:] == [step, user(response("get_weather", {"t": 1}), response("search")), user("text")]


def test_the_clients_responses_are_found_by_the_names_it_knows() -> None:
    true = true_turn(1, call("get_weather"), passthrough=True, answers=[None])
    history = [user("hi"), model(call("weather_g2")), user(response("weather_g2", {"mine": 1}))]
    out = rewritten(history, {1: true}, rules(strip=False, names={"get_weather": "weather_g3"}))
    assert out[1:] == [model(call("weather_g3")), user(response("weather_g3", {"mine": 1}))]


def test_a_response_that_answers_no_call_of_the_step_becomes_text() -> None:
    true = true_turn(1, call("get_weather"), passthrough=True)
    history = [user("hi"), model(call("get_weather")), user(response("get_weather"), response("stray"))]
    out = rewritten(history, {1: true})
    assert out[2:] == [user(response("get_weather")), user('[stray returned {"result":"stray"}]')]


def test_a_lost_signature_is_restored_and_the_base64_alphabet_does_not_matter() -> None:
    true = true_turn(1, call(signature="-_8="), passthrough=True)
    lost = [user("hi"), model(call()), user(response())]
    assert rewritten(lost, {1: true})[1] == model(call(signature="-_8="))
    same = [user("hi"), model(call(signature="+/8")), user(response())]
    assert rewritten(same, {1: true}) == same


# --- the client's own calls --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([model(call("own")), user(response("own"), "?")], [model("[Called own with {}]"), user("[own ret", "?")]),
        ([model(call("get_weather")), user(response("get_weather"))], None),
        ([model(call("get_weather")), user("ignored")], [model("[Called get_weather with {}]"), user("ignored")]),
        ([model("a"), user(response("own"))], [model("a"), user("[own ret")]),
        (
            [model(call("get_weather")), user("text", response("get_weather"))],
            [model("[Called get_weather with {}]"), user("text", "[get_weather ret")],
        ),
        (
            [model(call("get_weather"), call("own")), user(response("get_weather"), response("own"))],
            [model("[Called get_weather with {}]", "[Called own with {}]"), user("[get_weather ret", "[own ret")],
        ),
        ([model(SEARCHED, "a"), user("b")], [model('[Used GOOGLE_SEARCH with {"q":1}]', "a"), user("b")]),
    ],
    ids=[
        "undeclared",
        "declared",
        "unanswered",
        "orphan response",
        "text before the response",
        "half declared",
        "server tool",
    ],
)
def test_strip_turns_undeclared_pairs_into_text(history: Any, expected: Any) -> None:
    history = [user("hi"), *history]
    out = rewritten(history, {})
    for content in out:
        for part in content["parts"]:
            if "text" in part and " returned " in part["text"]:
                part["text"] = part["text"].split("urned")[0]
    assert out == (history if expected is None else [user("hi"), *expected])


@pytest.mark.parametrize("role", ["model", "function", "user"])
def test_responses_as_text_have_the_role_user_whatever_the_client_sent(role: str) -> None:
    answers = {**user(response("own")), "role": role}
    out = rewritten([user("hi"), model(call("own")), answers, user("?")], {})
    assert [content["role"] for content in out] == ["user", "model", "user", "user"]
    assert out[2] == user('[own returned {"result":"own"}]')


@pytest.mark.parametrize("role", ["model", "function"])
def test_responses_of_an_unchanged_step_keep_their_bytes(role: str) -> None:
    history = [user("hi"), model(call("get_weather")), {**user(response("get_weather")), "role": role}, user("?")]
    assert rewritten(history, {}) == history


def test_keep_leaves_the_clients_own_pairs_alone() -> None:
    history = [user("hi"), model(call("own")), user(response("own"))]
    assert rewritten(history, {}, rules(strip=False)) == history


def test_turns_that_need_no_change_are_not_decoded() -> None:
    request = parse(encode({"contents": [user("hi"), model("a"), user("b")]}))
    assert rewrite(request.body, request.history, {}, rules()) is None


# --- properties --------------------------------------------------------------------------------------------------

Kind = Literal["text", "placeholder", "repeat", "joined", "mixed", "passthrough", "own"]


@dataclass
class Chat:
    """A chat as a client sends it, turn by turn, with the ledger's entries for it."""

    strip: bool
    model: Generation
    functions: bool = True
    turns: list[list[Document]] = field(default_factory=list)
    by_id: dict[str, TrueTurn] = field(default_factory=dict)
    by_digest: dict[bytes, TrueTurn] = field(default_factory=dict)

    def hits(self, history: Any) -> dict[int, list[TrueTurn]]:
        found = {}
        for index, turn in enumerate(history.turns):
            if turn.side == "model" and index:
                ids = [name for _, _, name in TEMPLATE.find(turn.text) if name in self.by_id]
                true = [self.by_id[name] for name in ids]
                if not ids and turn.digest in self.by_digest:
                    true = [self.by_digest[turn.digest]]
                if true:
                    found[index] = true
        return found

    def rewritten(self, body: bytes) -> bytes:
        return self.read(body)[0]

    def read(self, body: bytes, known: Prefix | None = None) -> tuple[bytes, Request]:
        """The body rewritten, and the request as it was read from a known beginning."""
        request = parse(body, (), known)
        request.history.identify(body)
        own = () if self.strip else ("own",)
        by = rules(self.model, strip=self.strip, own=own)
        if not self.functions:
            by = without_functions(strip=self.strip, own=own)
        return assemble(request, {}, rewrite(body, request.history, self.hits(request.history), by)), request


texts = st.sampled_from(["hi", "So?", "Well, well.", "Ünïcode\nlines", "  spaced  "])


@st.composite
def chats(draw: st.DrawFn) -> Chat:
    chat = Chat(draw(st.booleans()), draw(st.sampled_from([(2, 5), (3, 0), (3, 5)])), draw(st.booleans()))
    placeholders: list[TrueTurn] = []
    following: list[Document] = []
    for n in range(draw(st.integers(1, 6))):
        chat.turns.append(
            [user(*following, draw(texts))] if not following or draw(st.booleans()) else [user(*following)]
        )
        following = []
        kinds: list[Kind] = ["text", "placeholder", "passthrough", "own"]
        kinds += ["mixed"] if not chat.strip else []
        kinds += ["repeat", "joined"] if placeholders else []
        kind = draw(st.sampled_from(kinds))
        names = draw(st.lists(st.sampled_from(sorted(NAMES)), min_size=1, max_size=3))
        signature = draw(st.sampled_from([None, "c2ln"]))
        parts = [call(name, None if i else signature, args={"n": n, "i": i}) for i, name in enumerate(names)]
        answers = draw(st.lists(st.sampled_from([None, {"t": 1}]), min_size=len(names), max_size=len(names)))
        if kind == "text":
            chat.turns.append([model(text) for text in draw(st.lists(texts, min_size=1, max_size=3))])
        elif kind == "repeat":
            chat.turns.append([visible_turn(draw(st.sampled_from(placeholders)))])
        elif kind in ("placeholder", "joined"):
            lead = draw(st.sampled_from([[], ["Let me look."]]))
            true = true_turn(n, *lead, *parts, answers=answers)
            chat.by_id[true.turn_id] = true
            run = [visible_turn(true)]
            if kind == "joined":
                run = [model(draw(texts)), visible_turn(draw(st.sampled_from(placeholders))), *run, model(draw(texts))]
            placeholders.append(true)
            chat.turns.append(run)
        elif kind == "own":
            own = "gone" if chat.strip else "own"
            chat.turns.append([model(call(own, args={"n": n}))])
            if not chat.strip or draw(st.booleans()):
                following = [response(own)]
        else:
            known: list[Any] = list(answers)
            if kind == "mixed":
                parts.insert(draw(st.integers(0, len(parts))), call("own", args={"n": n}))
                known.insert(next(i for i, p in enumerate(parts) if p["functionCall"]["name"] == "own"), "own")
            true = true_turn(n, *parts, answers=known, passthrough=kind == "passthrough")
            visible = parts if kind == "passthrough" else [p for p in parts if p["functionCall"]["name"] == "own"]
            chat.by_digest[visible_digest(visible)] = true
            chat.turns.append([model(part) for part in visible] if draw(st.booleans()) else [model(*visible)])
            following = [response(p["functionCall"]["name"]) for p in visible if draw(st.booleans())]
    chat.turns.append([user(*following, draw(texts))])
    cut = draw(st.integers(0, len(chat.turns) - 1))
    if chat.strip or not any(kind in str(chat.turns[cut]) for kind in ("functionCall", "functionResponse")):
        chat.turns = chat.turns[cut:]
    return chat


def body_of(chat: Chat) -> bytes:
    contents = b" ,\n".join(b" " + encode(c).replace(b'{"role"', b'{ "role"') for run in chat.turns for c in run)
    return b'{"contents": [' + contents + b'], "x": 1}'


def check_order(contents: Sequence[Document]) -> None:
    """Checks Gemini's order rules, independently of the code under test."""
    runs: list[tuple[str, list[Document]]] = []
    for content in contents:
        parts = content["parts"]
        assert parts, "a Content without parts"
        answers = any("functionResponse" in part for part in parts)
        side = "model" if content["role"] == "model" and not answers else "user"
        if runs and runs[-1][0] == side:
            runs[-1][1].extend(parts)
        else:
            runs.append((side, list(parts)))
    assert runs[-1][0] == "user", "the request must end with a user turn"
    for at, (side, parts) in enumerate(runs):
        assert all(part and part.get("text") != "" for part in parts), "an empty part"
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        answers_here = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if side == "model":
            assert not calls or at > 0, "a call turn must follow a user turn"
            follow = [p["functionResponse"] for p in runs[at + 1][1] if "functionResponse" in p]
            assert [c["name"] for c in calls] == [r["name"] for r in follow], "as many responses, in call order"
        else:
            before = [p for p in runs[at - 1][1] if "functionCall" in p] if at else []
            assert len(before) == len(answers_here), "responses must follow their calls"
            first = parts[: len(answers_here)]
            assert all("functionResponse" in part for part in first), "text before a functionResponse"


@settings(max_examples=150, deadline=None)
@given(chats())
def test_the_result_keeps_geminis_order(chat: Chat) -> None:
    check_order(decode(chat.rewritten(body_of(chat)))["contents"])


@settings(max_examples=150, deadline=None)
@given(chats())
def test_rewriting_twice_is_the_same_as_once(chat: Chat) -> None:
    once = chat.rewritten(body_of(chat))
    assert decode(chat.rewritten(once)) == decode(once)


@settings(max_examples=60, deadline=None)
@given(chats())
def test_the_same_history_gives_the_same_bytes_every_time(chat: Chat) -> None:
    assert chat.rewritten(body_of(chat)) == chat.rewritten(body_of(chat))


@settings(max_examples=60, deadline=None)
@given(chats())
def test_turns_that_need_no_change_keep_their_bytes(chat: Chat) -> None:
    body = body_of(chat)
    out = chat.rewritten(body)
    request = parse(body)
    request.history.identify(body)
    hits = chat.hits(request.history)
    for index, turn in enumerate(request.history.turns):
        if index not in hits and not turn.holds:
            assert body[turn.spans[0][0] : turn.spans[-1][1]] in out


@settings(max_examples=60, deadline=None)
@given(chats())
def test_every_expanded_step_occurs_once_with_its_signature(chat: Chat) -> None:
    contents = decode(chat.rewritten(body_of(chat)))["contents"]
    calls = [part for content in contents for part in content["parts"] if "functionCall" in part]
    for true in [*chat.by_id.values(), *chat.by_digest.values()]:
        for part in true.steps[0].content["parts"]:
            same = [one for one in calls if one["functionCall"] == part.get("functionCall")]
            assert len(same) <= 1
            if same and "thoughtSignature" in part:
                assert same[0]["thoughtSignature"] == part["thoughtSignature"]


@settings(max_examples=150, deadline=None)
@given(chats(), st.data())
def test_a_history_that_grows_is_written_as_if_all_of_it_were_new(chat: Chat, data: st.DataObject) -> None:
    known: list[Prefix] = []
    for end in range(1, len(chat.turns) + 1):
        now = replace(chat, turns=chat.turns[:end])
        change = data.draw(st.sampled_from(["nothing", "nothing", "answers", "model", "functions", "question"]))
        if change == "answers":  # other records of the same turns
            chat.by_id |= {name: answered(true) for name, true in chat.by_id.items()}
        elif change == "model":
            now.model = (3, 0)
        elif change == "functions":
            now.functions = not now.functions
        elif change == "question":
            now.turns[-1] = [user("another question")]
        body = body_of(now)
        for prefix in known:
            if prefix.is_start_of(body):
                assert now.read(body, prefix)[0] == now.rewritten(body)
        found = now.read(body, next((one for one in reversed(known) if one.is_start_of(body)), None))[1].prefix()
        known += [found] if found is not None else []


def answered(true: TrueTurn) -> TrueTurn:
    answers = {call_id: answer or {"late": True} for call_id, answer in true.answers.items()}
    return TrueTurn(true.turn_id, true.steps, answers, visible_text=true.visible_text, passthrough=true.passthrough)


def test_what_a_turn_became_does_not_last_if_later_turns_can_change_it() -> None:
    pending, unsigned = true_turn(1, call("search"), answers=[None]), true_turn(2, call("search"))
    by_id = {true.turn_id: true for true in (pending, unsigned)}
    own, answer = call("own", "c2ln"), user(response("own"))
    is_last_step = [visible_turn(pending), user("And?"), visible_turn(pending), user("So?")]
    is_in_current_turn = [model(unsigned.visible_text, own), answer, model(own), answer]
    for turns in (is_last_step, is_in_current_turn):
        chat = Chat(False, (3, 0), by_id=by_id, turns=[[user("Find it.")], *([turn] for turn in turns)])
        before, request = chat.read(body_of(chat))
        known = request.prefix()
        chat.turns += [[model("Done.")], [user("Thanks.")]]
        body = body_of(chat)
        assert known is not None
        assert known.is_start_of(body)
        after = chat.read(body, known)[0]
        assert after == chat.rewritten(body)
        assert decode(after)["contents"][1:3] != decode(before)["contents"][1:3], "it did depend on them"


def test_what_a_turn_became_is_not_worked_out_for_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[Document] = []
    contents = HistoryTurn.contents

    def noted(turn: HistoryTurn, body: bytes) -> list[Document]:
        decoded.extend(contents(turn, body))
        return contents(turn, body)

    monkeypatch.setattr(HistoryTurn, "contents", noted)
    true = true_turn(1, call("search"))
    chat = Chat(True, (2, 5), by_id={true.turn_id: true}, turns=[[user("Find it.")], [visible_turn(true)]])
    known: Prefix | None = None
    for n in range(4):
        new = [user(f"{n}?"), model(call("own", args={"n": n})), user(response("own")), model(f"{n}."), user("So?")]
        chat.turns += [[content] for content in new]
        decoded.clear()
        rewritten_body, request = chat.read(body_of(chat), known)
        assert decoded
        assert all(content in new for content in decoded)
        assert rewritten_body == chat.rewritten(body_of(chat))
        known = request.prefix()
        chat.turns.pop()
