"""Histories and their rewritten forms."""

from collections.abc import Mapping, Sequence
from typing import Any

from addon.core.framing.documents import Document, decode, encode
from addon.core.history.placeholder import Placeholder
from addon.core.history.request import assemble, parse
from addon.core.history.rewriting import RewriteRules, rewrite
from addon.core.history.steps import CallSlot, TrueStep, TrueTurn
from addon.core.model_names import Generation
from addon.core.tools.tool_plan import ToolPlan
from tests.contents import model

TEMPLATE = Placeholder("Tool call completed: {names} [{turn_id}]")
NAMES = {"get_weather": "get_weather", "search": "search"}


def turn_id(n: int) -> str:
    return f"turn_{n:016x}"


def plan(names: Mapping[str, str] = NAMES, own: Sequence[str] = (), *, server_tools: bool = False) -> ToolPlan:
    declared = frozenset([*names.values(), *own])
    return ToolPlan(b"[]", None, True, names, declared, server_tools=server_tools)


def rules(model: Generation = (2, 5), *, strip: bool = True, ids: bool = True, **kwargs: Any) -> RewriteRules:
    return RewriteRules(plan(**kwargs), strip, model, TEMPLATE, ids)


def without_functions(*, strip: bool = True, own: Sequence[str] = ()) -> RewriteRules:
    """The rules of a request that cannot use functions."""
    nothing = ToolPlan(None, None, strip, {}, frozenset(own), grafts=False)
    return RewriteRules(nothing, strip, (2, 5), TEMPLATE, keeps_pending=True)


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
    by_id = {
        slot.call_id: None if answer is None else {"response": answer}
        for slot, answer in zip(slots, known, strict=True)
        if slot.call_id
    }
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


SEARCHED = {"toolCall": {"toolType": "GOOGLE_SEARCH", "id": "s", "args": {"q": 1}}, "thoughtSignature": "c2ln"}


def answered(true: TrueTurn) -> TrueTurn:
    answers = {call_id: answer or {"response": {"late": True}} for call_id, answer in true.responses.items()}
    return TrueTurn(true.turn_id, true.steps, answers, visible_text=true.visible_text, passthrough=true.passthrough)
