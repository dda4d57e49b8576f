"""The written form of a history's beginning, from which a longer history continues."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from addon.core.history.request import Piece
from addon.core.history.rewrite_rules import RewriteRules
from addon.core.history.steps import TrueTurn

_PIECE = 160
"""The approximate memory use of a piece in bytes, besides its own bytes."""

LARGE = 4096
"""From this size in bytes on, pieces are not copied."""


class Beginning(NamedTuple):
    """The written turns before `end`, and the writer's state after them. Valid for these rules and hits, whatever
    follows. `size`: the approximate memory use in bytes."""

    end: int
    rules: RewriteRules
    hits: Mapping[int, Sequence[TrueTurn]]
    pieces: Sequence[Piece]
    untouched: int
    changed: bool
    expanded: frozenset[str]
    size: int


def joined_pieces(known: Beginning | None, written: Sequence[Piece]) -> tuple[list[Piece], int]:
    """The pieces of a beginning, and their size. `written`: all pieces. Those after `known` are joined."""
    count, size = (len(known.pieces), known.size) if known else (0, 0)
    pieces = [*written[:count], *_joined(written[count:])]  # the last known piece may have become longer
    return pieces, size + sum(_PIECE + (len(piece) if isinstance(piece, bytes) else 0) for piece in pieces[count:])


def _joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """The same Contents in fewer pieces: adjacent new Contents become one, except large ones, to avoid a copy."""
    run: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, bytes) and len(piece) < LARGE:
            run.append(piece)
            continue
        if run:
            yield b",".join(run)
            run = []
        yield piece
    if run:
        yield b",".join(run)
