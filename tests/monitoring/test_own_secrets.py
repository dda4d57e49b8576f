"""The proxy's own secrets stay known, however many executors come and go."""

import pytest

from addon.monitoring import own_secrets
from addon.monitoring.own_secrets import OwnSecrets


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_secrets, "_MAX_OF_EXECUTORS", 4)


def masked(secrets: OwnSecrets, *names: str) -> list[str]:
    return [name for name in names if secrets.redaction.text(name) == "***"]


def test_the_proxy_s_own_are_never_forgotten() -> None:
    secrets = OwnSecrets()
    secrets.learn(["gateway-key"])
    for number in range(10):
        secrets.learn_of_executor([f"executor-{number}x"])
    assert masked(secrets, "gateway-key", "executor-5x", "executor-6x", "executor-9x") == [
        "gateway-key",
        "executor-6x",
        "executor-9x",
    ]
    assert secrets.combined_with(["client-key"]).text("gateway-key client-key executor-9x") == "*** *** ***"


def test_executors_are_forgotten_that_were_not_used_for_longest() -> None:
    secrets = OwnSecrets()
    for number in range(4):
        secrets.learn_of_executor([f"executor-{number}x"])
    secrets.learn_of_executor(["executor-0x"])
    secrets.learn_of_executor(["executor-4x"])
    assert masked(secrets, *(f"executor-{number}x" for number in range(5))) == [
        "executor-0x",
        "executor-2x",
        "executor-3x",
        "executor-4x",
    ]


def test_a_secret_of_both_stays_the_proxy_s_own() -> None:
    secrets = OwnSecrets()
    secrets.learn_of_executor(["gateway-key"])
    secrets.learn(["gateway-key"])
    secrets.learn_of_executor([f"executor-{number}x" for number in range(10)])
    assert masked(secrets, "gateway-key") == ["gateway-key"]


def test_known_secrets_rebuild_nothing() -> None:
    secrets = OwnSecrets()
    secrets.learn(["gateway-key"])
    secrets.learn_of_executor(["executor-1x"])
    known, combined = secrets.redaction, secrets.combined_with(["client-key"])
    secrets.learn(["gateway-key", "short"])
    secrets.learn_of_executor(["executor-1x", "gateway-key", "short"])
    assert secrets.redaction is known
    assert secrets.combined_with(["client-key"]) is combined
