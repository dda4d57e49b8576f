"""What is remembered stays within one budget, and no kind of it pushes another out of its part."""

from store.budget import ENTRY, Budget, Share


def test_the_least_recently_used_are_dropped_and_their_owner_is_called() -> None:
    dropped: list[tuple[str, int]] = []
    budget = Budget(100 * ENTRY)
    share: Share[str, int] = budget.share("a", 0.1, 0.1, lambda key, value: dropped.append((key, value)))
    for number, key in enumerate("abcde"):
        assert share.put(key, number, ENTRY)
        assert share.get("a") == 0
    assert share.put("f", 5, ENTRY)
    assert dropped == [("b", 1)]
    assert [key for key in "abcdef" if key in share] == ["a", "c", "d", "e", "f"]
    assert share.size == budget.size == 10 * ENTRY


def test_an_entry_is_counted_once_whatever_becomes_of_it() -> None:
    budget = Budget(1000 * ENTRY)
    share: Share[str, int] = budget.share("a", 0.5, 1)
    share.put("x", 1, 10)
    share.put("x", 2, 20)
    assert (share.peek("x"), len(share), budget.size) == (2, 1, 20 + ENTRY)
    assert (share.pop("x"), share.pop("x"), share.get("x"), share.peek("x")) == (2, None, None, None)
    assert budget.size == 0
    share.put("y", 1, 10)
    share.replace("y", 2)
    share.replace("z", 3)
    assert (share.peek("y"), share.peek("z"), budget.size) == (2, None, 10 + ENTRY)
    share.clear()
    assert (len(share), budget.sizes()) == (0, {"a": 0})


def test_what_would_take_more_than_half_of_a_share_is_not_remembered() -> None:
    budget = Budget(100 * ENTRY)
    share: Share[str, int] = budget.share("a", 0.2, 0.2)
    assert share.put("x", 1, 9 * ENTRY)
    assert not share.put("x", 2, 10 * ENTRY)
    assert "x" not in share, "an outdated value"
    assert budget.size == 0


def test_a_share_uses_what_others_leave_and_gives_it_back() -> None:
    budget = Budget(100 * ENTRY)
    small: Share[int, None] = budget.share("small", 0.3, 0.5)
    large: Share[int, None] = budget.share("large", 0.5, 1)
    for number in range(200):
        large.put(number, None, 0)
    assert budget.sizes() == {"small": 0, "large": 100 * ENTRY}
    for number in range(100):
        small.put(number, None, 0)
        assert budget.size <= budget.limit
    assert budget.sizes() == {"small": 40 * ENTRY, "large": 60 * ENTRY}, "each a tenth beyond its own part"
    other: Share[int, None] = budget.share("other", 0.2, 1)
    for number in range(200):
        other.put(number, None, 0)
        assert budget.size <= budget.limit
    assert budget.sizes() == {"small": 30 * ENTRY, "large": 50 * ENTRY, "other": 20 * ENTRY}
    assert (99 in small, 70 in small, 69 in small) == (True, True, False), "the most recently used stay"


def test_a_new_share_of_a_name_replaces_the_old() -> None:
    budget = Budget(100 * ENTRY)
    old: Share[str, int] = budget.share("a", 0.5, 1)
    old.put("x", 1, 10)
    share: Share[str, int] = budget.share("a", 0.5, 1)
    assert (budget.size, "x" in share) == (0, False)
    assert not old.put("x", 1, 10), "by one that does not know of the new"
    assert budget.size == 0
