"""What becomes of a request if the store or the grafter itself fails."""

from typing import Any

import pytest

from addon.core.framing.documents import Document, decode, encode
from addon.graft.exchange import Forward, Reply
from addon.graft.grafter import Grafter, GraftFailed
from addon.surfaces.incoming import Framing, Incoming, Operation, Target
from store.base import StoreUnavailable
from tests.contents import model, user
from tests.graft.conftest import WEATHER, Graft, target
from tests.graft.grafter_requests import STREAM, pending

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
    outcome = await graft.grafter.request(Incoming(to, config.session, data), config)
    assert isinstance(outcome, Reply)
    assert (outcome.status, outcome.content_type) == (503, "application/json; charset=UTF-8")
    document = decode(outcome.body)
    error = (document[0] if wrapped else document)["error"]
    assert error["status"] == "UNAVAILABLE"
    assert "the store does not answer" in error["message"]
    settings = graft.grafter.settings.model_copy(update={"on_store_error": "pass"})
    passing = Grafter(graft.store, settings, graft.grafter.metrics)
    assert await passing.request(Incoming(to, config.session, data), config) == Forward(data)


# --- what nobody foresaw -----------------------------------------------------------------------------------------

MISTAKES = {
    "prefix": "addon.graft.ledger.Prefixes.find",
    "look-up": "addon.graft.grafter.hits_of",
    "tools": "addon.core.tools.tool_plan.Toolbox.strip",
    "history": "addon.core.history.rewriting._Writer.user_turn",
    "body": "addon.surfaces.surface.assemble",
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
    fine = await graft.grafter.request(Incoming(to, config.session, data), config)
    with monkeypatch.context() as patch:
        patch.setattr(MISTAKES[where], mistaken)
        assert await passing.request(Incoming(to, config.session, data), config) == Forward(data)
        caplog.clear()
        outcome = await graft.grafter.request(Incoming(to, config.session, data), config)
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
    after = await graft.grafter.request(Incoming(to, config.session, data), config)
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
