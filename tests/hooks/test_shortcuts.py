"""Shorter ways to what mitmproxy does, with the same result."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import mitmproxy.proxy.layers  # noqa: F401 - makes the hooks of flows known
import pytest
from mitmproxy import hooks, http
from mitmproxy.hooks import Hook
from mitmproxy.http import Headers, MessageData, RequestData, ResponseData

from addon.hooks.shortcuts import SHORTCUTS, Shortcut
from addon.hooks.written_for import source_hash
from tests.hooks.harness import Hooks

MADE: dict[type[MessageData], dict[str, Any]] = {
    RequestData: vars(http.Request.make("POST", "http://a.test/b", b"c").data),
    ResponseData: vars(http.Response.make(200, b"c").data),
}


class Bytes(bytes):
    pass


class Fields(Headers):
    pass


VALUES = [b"", Bytes(), "", 0, True, 0.5, None, [], object(), Headers(), Fields(), (b"", b"")]


@pytest.fixture
def taken() -> Iterator[None]:
    for shortcut in SHORTCUTS:
        assert shortcut.take()
    yield
    for shortcut in SHORTCUTS:
        shortcut.release()


def made(kind: type[MessageData], **other: Any) -> str:
    """What is said of a message of these fields, where there is something to say."""
    try:
        kind(**MADE[kind] | other)
    except TypeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", MADE)
def test_a_message_takes_what_it_took(kind: type[MessageData]) -> None:
    given = [{field.name: value} for field in fields(kind) for value in VALUES]
    expected = [made(kind, **one) for one in given]
    assert "" in expected
    assert len(set(expected)) > len(fields(kind))
    for shortcut in SHORTCUTS:
        assert shortcut.take()
    try:
        assert [made(kind, **one) for one in given] == expected
    finally:
        for shortcut in SHORTCUTS:
            shortcut.release()


@pytest.mark.usefixtures("taken")
def test_a_kind_of_message_that_is_derived_is_checked_too() -> None:
    class Derived(ResponseData):
        pass

    assert Derived(**MADE[ResponseData])
    with pytest.raises(TypeError, match="status_code"):
        Derived(**MADE[ResponseData] | {"status_code": "200"})


@pytest.mark.usefixtures("taken")
def test_a_message_as_proxies_make_them_is_not_checked_field_by_field(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_option_type(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("mitmproxy.utils.typecheck.check_option_type", check_option_type)
    for kind, values in MADE.items():
        assert kind(**values)


def test_hooks_have_the_arguments_that_they_had() -> None:
    events = [kind(*map(str, range(len(fields(kind))))) for kind in hooks.all_hooks.values()]  # type: ignore[arg-type]
    expected = [event.args() for event in events]
    args = next(shortcut for shortcut in SHORTCUTS if shortcut.owner is Hook)
    assert args.take()
    try:
        assert [event.args() for event in events] == expected
    finally:
        args.release()


def method() -> object:
    return vars(MessageData)["__post_init__"]


async def test_shortcuts_are_taken_while_one_mitmproxy_wants_them(make: Callable[..., Hooks]) -> None:
    own = method()
    one, other = make(), make()
    shorter = method()
    assert shorter is not own
    await one.done()
    assert method() is shorter
    other.set(fast="off")
    assert method() is own
    other.set(fast="on")
    assert method() is shorter
    await other.done()
    assert method() is own


async def test_another_mitmproxy_takes_the_shortcuts_that_fit(
    make: Callable[..., Hooks], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def args(self: Hook) -> list[Any]:
        return list(vars(self).values())

    own = method()
    monkeypatch.setattr(Hook, "args", args)
    hooks = make()
    assert method() is not own
    assert vars(Hook)["args"] is args
    assert caplog.text.count("graft_fast") == 1
    assert "Hook.args" in caplog.text
    await hooks.done()
    assert method() is own
    assert vars(Hook)["args"] is args


def test_a_method_of_a_script_is_left_in_place() -> None:
    class Owner:
        def method(self) -> int:
            return 1

    def its_own(self: Owner) -> int:
        return 3

    shortcut = Shortcut(Owner, "method", lambda self: 2, source_hash(Owner.method))
    assert shortcut.take()
    assert Owner().method() == 2
    Owner.method = its_own  # type: ignore[method-assign]
    shortcut.release()
    assert Owner().method() == 3
    assert not shortcut.take()
