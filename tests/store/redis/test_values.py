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


def test_a_body_with_the_former_words_is_read() -> None:
    packer = zlib.compressobj(6, zlib.DEFLATED, 13, 6, zlib.Z_DEFAULT_STRATEGY, values._FORMER_WORDS)
    assert values.text_of(packer.compress(RECORD.encode()) + packer.flush()) == RECORD


def test_the_common_words_are_a_part_of_the_format() -> None:
    digests = [hashlib.sha256(words).hexdigest()[:16] for words in (values._WORDS, values._FORMER_WORDS)]
    assert digests == ["a4d1b69bd5c92635", "4318e3a271a167fb"], "records written with other words could not be read"
