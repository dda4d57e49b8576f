"""Bodies of values: compressed with the words that records have in common."""

import hashlib
import json
import zlib

import pytest

from store.backends import _redis_values as values

RECORD = json.dumps(
    {"call_id": "call_1", "name": "get_weather", "status": "done", "owner": "hand"}, separators=(",", ":")
)


@pytest.mark.parametrize("text", ["", "{}", RECORD, RECORD * 50, json.dumps({"text": "x" * 100_000, "ö": "€"})])
def test_a_body_is_read_as_it_was_written(text: str) -> None:
    assert values.text_of(values.compress(text)) == text


def test_a_body_of_an_earlier_version_is_read() -> None:
    assert values.text_of(zlib.compress(RECORD.encode(), 1)) == RECORD
    assert values.text_of(RECORD.encode()) == RECORD


def test_a_small_record_shrinks_to_what_only_it_has() -> None:
    assert len(values.compress(RECORD)) < len(RECORD) / 2


def test_a_damaged_body_is_empty() -> None:
    body = values.compress(RECORD)
    for damaged in (body[:-1], body[:-9], body[:4], b"\x78", b"\x58\x09no", b"\xff"):
        assert values.text_of(damaged) == ""


def test_the_common_words_are_a_part_of_the_format() -> None:
    digest = hashlib.sha256(values._WORDS).hexdigest()[:16]
    assert digest == "a4d1b69bd5c92635", "records written with other words could not be read"
