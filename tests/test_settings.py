"""The options: what fits, and what is refused in words."""

from typing import Any

import pytest
from pydantic import ValidationError

from addon.settings import Settings, explain


@pytest.mark.parametrize(
    "template", ["[{turn_id}]", "{names} - {turn_id}", "OK: {names} [{turn_id}]", "12345 {turn_id}"]
)
def test_a_placeholder_needs_words_of_its_own(template: str) -> None:
    options: dict[str, Any] = {"graft_placeholder": template}
    with pytest.raises(ValidationError) as refused:
        Settings.from_options(options)
    assert "three letters" in explain(refused.value)


@pytest.mark.parametrize("template", ["Ran {names} [{turn_id}]", "{turn_id} done", "工具已完成 {names} {turn_id}"])
def test_a_placeholder_with_words_fits(template: str) -> None:
    assert Settings.from_options({"graft_placeholder": template}).placeholder == template
