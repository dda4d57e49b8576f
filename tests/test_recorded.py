"""Our own exchanges stand in for the recordings where these are not there."""

import json

import pytest

from tests.recorded import OWN, RECORDED, exchanges


@pytest.mark.skipif(not RECORDED, reason="no recordings")
def test_our_own_exchanges_have_every_tag_of_the_recordings() -> None:
    own = {tag for line in OWN.read_text().splitlines() for tag in json.loads(line)["tags"]}
    assert {tag for exchange in exchanges() for tag in exchange["tags"]} == own


def test_our_own_exchanges_have_unique_ids() -> None:
    ids = [json.loads(line)["id"] for line in OWN.read_text().splitlines()]
    assert len(ids) == len(set(ids))
    assert all(name.startswith("own-") for name in ids)
