"""What a filter of keys may leave out."""

import random

import pytest

from store.backends._key_filter import KeyFilter


@pytest.mark.parametrize("count", [0, 1, 1000, 100_000])
def test_no_key_is_missed_and_few_others_are_possible(count: int) -> None:
    rng = random.Random(count)
    old, new, others = ([rng.randbytes(16) for _ in range(max(count, 1000))] for _ in range(3))
    filter = KeyFilter("".join(key[:4].hex() for key in old[:count]))
    filter.add(new[:1000])
    assert filter.possible(old[:count]) == old[:count]
    assert filter.possible(new[:1000]) == new[:1000]
    assert len(filter.possible(others)) < len(others) // 40


def test_keys_that_are_shorter_than_a_beginning_are_keys_too() -> None:
    filter = KeyFilter("0000006100000000")
    filter.add([b"bcd"])
    assert filter.possible([b"a", b"", b"bcd", b"x" * 16]) == [b"a", b"", b"bcd"]
