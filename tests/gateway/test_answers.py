"""What a front door takes from an answer."""

from typing import Any

import pytest

from addon.gateway.gemini import calls_of
from tests.contents import model
from tests.gateway.conftest import MODEL, House
from tests.loop.conftest import says


@pytest.mark.parametrize("odd", [None, 7, ["c2"], {"id": "c2"}])
def test_calls_whose_ids_are_no_texts_are_left_out(odd: Any) -> None:
    good = {"functionCall": {"id": "c1", "name": "f"}}
    parts = [good, {"functionCall": {"id": odd, "name": "f"}}, {"functionCall": [odd]}, {"text": "a"}]
    assert calls_of({"role": "model", "parts": parts}) == {"c1": good}


@pytest.mark.parametrize("path", ["/v1/gemini", "/v1/responses"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_candidate_whose_index_is_no_number_is_the_first(house: House, path: str, stream: bool) -> None:
    odd = says("hello", finish="STOP")
    odd["candidates"][0]["index"] = {"a": 1}
    upstream = house.upstream([odd], [odd])
    for _ in range(2):
        answer = await house.post(path, {"model": MODEL, "input": "hi", "conversation": "c", "stream": stream})
        assert '"text":"hello"' in answer.text
    assert upstream.bodies[1]["contents"][1] == model("hello")
