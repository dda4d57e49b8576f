"""What a front door takes from an answer."""

from typing import Any

import pytest

from addon.gateway.answers import calls_of


@pytest.mark.parametrize("odd", [None, 7, ["c2"], {"id": "c2"}])
def test_calls_whose_ids_are_no_texts_are_left_out(odd: Any) -> None:
    good = {"functionCall": {"id": "c1", "name": "f"}}
    parts = [good, {"functionCall": {"id": odd, "name": "f"}}, {"functionCall": [odd]}, {"text": "a"}]
    assert calls_of({"role": "model", "parts": parts}) == {"c1": good}
