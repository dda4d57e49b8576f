import json

from tests.cli.conftest import Cli, Proxy


def test_a_tool_is_approved_for_good(cli: Cli, proxy: Proxy) -> None:
    async def version(session: str, name: str) -> str:
        return "ab" * 16

    proxy.capture("call_1", needs_approval=True)
    assert "no longer has tools" in cli("approve", "call_1", "--always", status=1).stderr
    proxy.app.api.tool_version = version
    assert cli("approve", "call_1", "--always").stdout == "call_1 get_weather: approved\n"
    record = proxy.run(proxy.store.snapshot("default")).record
    assert record is not None
    assert record.policy.always_approved == {"get_weather": "ab" * 16}


def test_a_call_is_approved(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1", needs_approval=True)
    assert cli("calls").stdout.splitlines()[1].split()[:3] == ["call_1", "pending", "waiting"]
    assert cli("approve", "call_1").stdout == "call_1 get_weather: approved\n"
    assert cli("approve", "call_1", "--json").exit_code == 0
    assert cli("calls").stdout.splitlines()[1].split()[:3] == ["call_1", "pending", "approved"]


def test_a_call_is_denied_with_a_reason(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1", needs_approval=True)
    denied = json.loads(cli("deny", "call_1", "--reason", "not on a Friday", "--json").stdout)
    assert (denied["status"], denied["error"]) == ("denied", "the call was denied: not on a Friday")


def test_what_waits_for_nobody_is_named(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1")
    for command in ("approve", "deny"):
        assert "it is not waiting for this decision" in cli(command, "call_1", status=1).stderr
        assert "there is no such call" in cli(command, "call_2", status=1).stderr


def test_all_calls_are_denied(cli: Cli, proxy: Proxy) -> None:
    for number in range(3):
        proxy.capture(f"call_{number}", needs_approval=True)
    assert "or --all" in cli("deny", status=2).stderr
    assert "or --all" in cli("deny", "call_1", "--all", status=2).stderr
    assert "go with --all" in cli("deny", "call_1", "--name", "x", status=2).stderr
    assert cli("deny", "--all", "--name", "other").stdout == "0 calls denied\n"
    denied = json.loads(cli("deny", "--all", "--session", "default", "--reason", "no", "--json").stdout)
    assert denied == {"denied": ["call_0", "call_1", "call_2"]}
