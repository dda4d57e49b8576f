"""Results for long arguments are right too, and are not kept."""

from addon.core.security.untrusted import LONGEST_CACHED, cached_if_short


def test_only_results_for_short_arguments_are_kept() -> None:
    calls: list[tuple[str, bytes]] = []

    @cached_if_short(8)
    def joined(text: str, data: bytes) -> str:
        calls.append((text, data))
        return text + data.decode()

    long = "x" * (LONGEST_CACHED + 1)
    for _ in range(2):
        assert joined("a", b"b") == "ab"
        assert joined(long, b"b") == f"{long}b"
        assert joined("a", long.encode()) == f"a{long}"
    assert len(calls) == 5, "once for the short ones"
