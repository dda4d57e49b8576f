"""The parts as one addon: each hook of each part, in order; a mistake does not let a request out."""

import inspect
import json
from typing import Any

import pytest
from mitmproxy import http

from addon.hooks.compose import Toolgraft, build_addons
from addon.hooks.grafting import Grafting
from addon.hooks.routing import Routing
from tests.hooks.harness import Hooks, request


class Part:
    def __init__(self, name: str, calls: list[str]) -> None:
        self.name = name
        self.calls = calls


class AtOnce(Part):
    def response(self, flow: object) -> None:
        self.calls.append(self.name)

    def done(self) -> str:
        self.calls.append(self.name)
        return "a task of " + self.name


class Later(Part):
    async def response(self, flow: object) -> None:
        self.calls.append(self.name)


async def test_parts_are_called_in_order_and_waited_for() -> None:
    calls: list[str] = []
    whole: Any = Toolgraft([AtOnce("1", calls), Later("2", calls), AtOnce("3", calls)])
    await whole.response(object())
    assert calls == ["1", "2", "3"]
    assert not hasattr(whole, "request")


def test_a_hook_of_parts_that_do_not_wait_does_not_wait_either() -> None:
    calls: list[str] = []
    whole: Any = Toolgraft([AtOnce("1", calls), AtOnce("2", calls)])
    assert not inspect.iscoroutinefunction(whole.response)
    assert whole.done() == "a task of 1"
    assert calls == ["1", "2"]


def test_done_is_no_coroutine_function() -> None:
    """mitmproxy would drop it without a word."""
    (addon,) = build_addons()
    assert not inspect.iscoroutinefunction(getattr(addon, "done", None))


@pytest.mark.parametrize("hook", ["requestheaders", "request", "http_connect"])
async def test_a_mistake_in_a_hook_does_not_let_the_request_out(
    hook: str, hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hooks.lifecycle.runtime is not None

    def mistaken(*_: object, **__: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(hooks.part(Routing), "_assign_session", mistaken)
    monkeypatch.setattr(hooks.part(Routing), "_is_control", mistaken)
    flow: http.HTTPFlow = request()
    if hook == "request":
        monkeypatch.undo()
        await hooks.call("requestheaders", flow)
        monkeypatch.setattr(hooks.part(Grafting), "_rewrite", mistaken)
    with pytest.raises(RuntimeError, match="a mistake"):
        await hooks.call(hook, flow)
    assert flow.response is not None
    assert flow.response.status_code == 500
    assert json.loads(flow.response.content or b"")["error"]["status"] == "INTERNAL"
