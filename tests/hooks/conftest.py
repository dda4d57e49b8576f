"""The addon without a proxy, and mitmproxy's own deprecation warnings kept out of it."""

import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # mitmproxy's filters call pyparsing by its old names
    from tests.hooks.harness import Hooks


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Hooks]]:
    """Makes addons, and ends them after the test."""
    made: list[Hooks] = []

    def makes(**options: Any) -> Hooks:
        made.append(Hooks(**options))
        return made[-1]

    yield makes
    for hooks in made:
        await hooks.done()


@pytest.fixture
async def hooks(make: Callable[..., Hooks]) -> Hooks:
    """With one tool in the session `default`."""
    hooks = make()
    await hooks.tools("get_weather")
    return hooks


@pytest.fixture(autouse=True)
def _state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run side by side do not share the user's own."""
    monkeypatch.setenv("TOOLGRAFT_HOME", str(tmp_path / "toolgraft-home"))
