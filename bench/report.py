"""Rows of the tables, and their output."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """`reach`: the target in words; without a target it is "", and `ok` is None. `detail`: additional data, such as the
    absolute figures behind a ratio."""

    what: str
    reach: str
    measured: str
    ok: bool | None
    detail: str = ""

    @property
    def verdict(self) -> str:
        return {True: "yes", False: "NO", None: ""}[self.ok]


def at_least(what: str, target: float | None, value: float, detail: str = "") -> Row:
    """A ratio that should not be below its target; None: no target."""
    reach, ok = ("", None) if target is None else (f"≥ {target:.2f}", round(value, 2) >= target)
    return Row(what, reach, f"{value:.2f}", ok, detail)


def at_most(what: str, target: float | None, value: float, unit: str, detail: str = "", *, digits: int = 2) -> Row:
    """A cost that should not be above its target, in `unit` ("ms", "times", "%", "MB")."""
    text = f"{value:.{digits}f} {unit}"
    if target is None:
        return Row(what, "", text, None, detail)
    return Row(what, f"≤ {target:g} {unit}", text, round(value, digits) <= target, detail)


_HEADS = ("what", "reach", "measured", "ok", "detail")


def _cells(row: Row) -> tuple[str, ...]:
    return row.what, row.reach, row.measured, row.verdict, row.detail


def markdown(rows: Sequence[Row]) -> str:
    lines = ["| " + " | ".join(_HEADS) + " |", "|" + "---|" * len(_HEADS)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    return "\n".join(lines)


def plain(rows: Sequence[Row]) -> str:
    table = [_HEADS, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(_HEADS))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in table)
