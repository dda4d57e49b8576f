"""The faster methods return the same as mitmproxy's own."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import mitmproxy.proxy.layers  # noqa: F401 - makes the hooks of flows known
import pytest
from mitmproxy import hooks, http
from mitmproxy.hooks import Hook
from mitmproxy.http import Headers, MessageData, RequestData, ResponseData
from mitmproxy.test import taddons

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


@contextmanager
def taken() -> Iterator[None]:
    took = [shortcut for shortcut in SHORTCUTS if shortcut.take()]
    try:
        assert len(took) == len(SHORTCUTS)
        yield
    finally:
        for shortcut in took:
            shortcut.release()


def made(kind: type[MessageData], **other: Any) -> str:
    """The error for a message with these fields, if any."""
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
    with taken():
        assert [made(kind, **one) for one in given] == expected


def test_a_kind_of_message_that_is_derived_is_checked_too() -> None:
    class Derived(ResponseData):
        pass

    with taken():
        assert Derived(**MADE[ResponseData])
        with pytest.raises(TypeError, match="status_code"):
            Derived(**MADE[ResponseData] | {"status_code": "200"})


def test_a_message_as_proxies_make_them_is_not_checked_field_by_field(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_option_type(*_: object) -> None:
        raise AssertionError

    with taken():
        monkeypatch.setattr("mitmproxy.utils.typecheck.check_option_type", check_option_type)
        for kind, values in MADE.items():
            assert kind(**values)


def test_hooks_have_the_arguments_that_they_had() -> None:
    events = [kind(*map(str, range(len(fields(kind))))) for kind in hooks.all_hooks.values()]  # type: ignore[arg-type]
    expected = [event.args() for event in events]
    with taken():
        assert [event.args() for event in events] == expected


def method() -> object:
    return vars(MessageData)["__post_init__"]


async def test_shortcuts_are_taken_while_one_mitmproxy_wants_them(make: Callable[..., Hooks]) -> None:
    own = method()
    one, other = make(), make()
    assert method() is not own
    await one.done()
    assert method() is not own
    other.set(fast="off")
    assert method() is own
    other.set(fast="on")
    assert method() is not own
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


class Owner:
    def method(self) -> int:
        return 1


def test_a_method_of_a_script_is_left_in_place() -> None:
    def its_own(self: Owner) -> int:
        return 3

    name = f"{__name__}:Owner.method"
    shortcut = Shortcut(lambda own: lambda self: own(self) + 1, source_hash(name), name)
    assert shortcut.take()
    assert Owner().method() == 2
    Owner.method = its_own  # type: ignore[method-assign]
    shortcut.release()
    assert Owner().method() == 3
    assert not shortcut.take()


def test_what_is_not_there_is_no_shortcut() -> None:
    for name in ("mitmproxy.none:Hook.args", "mitmproxy.hooks:Hook.none", "mitmproxy.hooks:Hook.__init__"):
        assert not Shortcut(lambda own: own, "written for this", name).take()


HEADERS = Headers([(b"A", b"1"), (b"a", b"2"), (b"\xff", b"\xfe"), ("ä".encode(), "ö".encode()), (b"none", b"")])


def headers_of(headers: Headers) -> list[object]:
    names: list[Any] = ["a", "A", b"a", b"\xff", "\udcff", "ä", "Ä", "none", "nowhere", Text("a"), 1, None]
    return [result_of(headers.get_all, name) for name in names] + [result_of(headers.get, "a")]


def result_of(function: Callable[..., object], *given: object) -> object:
    try:
        return function(*given)
    except Exception as error:
        return repr(error)


class Text(str):
    pass


class Upper(Headers):
    """Whose names are compared in another way."""

    @staticmethod
    def _kconv(key: Any) -> Any:
        return key


def test_headers_are_found_as_they_were() -> None:
    odd = Headers()
    odd.fields = (("a", "1"), (b"a", 1))  # type: ignore[assignment]
    kinds = [HEADERS, Upper(HEADERS.fields), odd, Headers()]
    expected = [headers_of(headers) for headers in kinds]
    assert expected[0][:1] == [["1", "2"]]
    with taken():
        assert [headers_of(headers) for headers in kinds] == expected


def test_options_are_what_they_were() -> None:
    with taddons.context() as context:
        options = context.options
        options.add_option("given", Sequence[str], ["default"], "help")
        options.add_option("text", str | None, None, "help")
        options.add_option("number", int, 1, "help")
        options.update(number=2)

        def values() -> list[object]:
            return [(name, getattr(options, name)) for name in list(options._options)]

        expected = values()
        with taken():
            assert values() == expected
            options.given.append("changed")
            assert options.given == ["default"]
            options.update(given=["one"], text="a")
            options.given.append("two")
            assert (options.given, options.text) == (["one"], "a")
