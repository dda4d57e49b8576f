"""Each kind of what is remembered stays within its share."""

from store.budget import ENTRY, Budget, Share


def test_the_least_recently_used_are_dropped_and_their_owner_is_called() -> None:
    dropped: list[tuple[str, int]] = []
    budget = Budget(100 * ENTRY)
    share: Share[str, int] = budget.share("a", 0.1, lambda key, value: dropped.append((key, value)))
    for number, key in enumerate("abcde"):
        assert share.put(key, number, ENTRY)
        assert share.get("a") == 0
    assert share.put("f", 5, ENTRY)
    assert dropped == [("b", 1)]
    assert [key for key in "abcdef" if key in share] == ["a", "c", "d", "e", "f"]
    assert share.size == 10 * ENTRY


def test_an_entry_is_counted_once_whatever_becomes_of_it() -> None:
    budget = Budget(1000 * ENTRY)
    share: Share[str, int] = budget.share("a", 0.5)
    share.put("x", 1, 10)
    share.put("x", 2, 20)
    assert (share.get("x"), len(share), share.size) == (2, 1, 20 + ENTRY)
    assert (share.pop("x"), share.pop("x"), share.get("x")) == (2, None, None)
    assert share.size == 0
    share.put("y", 1, 10)
    share.replace("y", 2)
    share.replace("z", 3)
    assert (share.get("y"), share.get("z"), share.size) == (2, None, 10 + ENTRY)
    share.clear()
    assert (len(share), budget.sizes()) == (0, {"a": 0})


def test_what_is_larger_than_its_share_is_not_remembered() -> None:
    share: Share[str, int] = Budget(100 * ENTRY).share("a", 0.2)
    assert share.put("x", 1, 19 * ENTRY)
    assert not share.put("x", 2, 20 * ENTRY)
    assert "x" not in share, "an outdated value"
    assert share.size == 0


def test_a_share_does_not_push_out_another() -> None:
    budget = Budget(100 * ENTRY)
    small: Share[int, None] = budget.share("small", 0.3)
    large: Share[int, None] = budget.share("large", 0.5)
    small.put(0, None, 0)
    for number in range(200):
        large.put(number, None, 0)
    assert budget.sizes() == {"small": ENTRY, "large": 50 * ENTRY}
    assert (199 in large, 150 in large, 149 in large) == (True, True, False), "the most recently used stay"


def test_a_new_share_of_a_name_replaces_the_old() -> None:
    budget = Budget(100 * ENTRY)
    old: Share[str, int] = budget.share("a", 0.5)
    old.put("x", 1, 10)
    share: Share[str, int] = budget.share("a", 0.5)
    assert (budget.sizes(), "x" in share) == ({"a": 0}, False)
