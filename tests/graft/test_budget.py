"""What clients make the graft remember stays within its budget."""

from addon.core.answer import AnswerRewriter, ToolNames
from addon.core.history.placeholder import Placeholder
from addon.graft.exchange import Paused
from store.models import Step
from tests.contents import model
from tests.graft.conftest import Graft


def paused(text: str) -> Paused:
    rewriter = AnswerRewriter(
        ToolNames({}, frozenset()),
        Placeholder("Done: {turn_id}"),
        passthrough=False,
        hides_server_tools=False,
        new_turn_id=lambda index: "",
        call_id=lambda name, args: "",
        sign=lambda turn_id: "",
    )
    return Paused(rewriter, steps=(Step(content=model(text), slots=[]),))


async def test_paused_answers_are_remembered_by_their_bytes(graft: Graft) -> None:
    budget = graft.grafter.budget
    for number in range(200):
        graft.grafter.continuations.keep("default", f"small{number}", paused("x"))
    assert graft.grafter.continuations.find("default", "small0") is not None
    for number in range(50):
        graft.grafter.continuations.keep("default", f"large{number}", paused("x" * 500_000))
        assert 0 < budget.sizes()["paused answers"] <= budget.limit // 16
    assert graft.grafter.continuations.find("default", "small199") is None
    assert graft.grafter.continuations.find("default", "large49") is not None
    graft.grafter.continuations.keep("default", "huge", paused("x" * budget.limit))
    assert graft.grafter.continuations.find("default", "huge") is None


async def test_new_settings_forget_what_the_old_ones_made(graft: Graft) -> None:
    old = graft.grafter
    old.continuations.keep("default", "token", paused("x"))
    new = Graft(graft.store).grafter
    replacing = type(new)(graft.store, old.settings, old.metrics, budget=old.budget)
    assert not any(old.budget.sizes().values())
    old.continuations.keep("default", "token", paused("x"))  # an answer that is still on its way
    assert replacing.continuations.find("default", "token") is None
    assert not any(old.budget.sizes().values())
