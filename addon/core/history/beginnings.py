"""What the beginning of a history was written as, so that a longer history with the same beginning continues from
there."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from addon.core.history.request import Piece
from addon.core.history.rewrite_rules import RewriteRules
from addon.core.history.steps import TrueTurn

_PIECE = 160
"""The approximate memory use of a piece in bytes, besides its own bytes."""

LARGE = 4096
"""The size of a piece that is worth no copy, in bytes."""


class Beginning(NamedTuple):
    """The turns before `end` as they were written, and what the turns behind them must know of that. It is valid for
    these rules and these hits, whatever follows. `size`: its approximate memory use in bytes."""

    end: int
    rules: RewriteRules
    hits: Mapping[int, Sequence[TrueTurn]]
    pieces: Sequence[Piece]
    untouched: int
    changed: bool
    expanded: frozenset[str]
    size: int


def joined_pieces(known: Beginning | None, written: Sequence[Piece]) -> tuple[list[Piece], int]:
    """The pieces of a beginning, and their size. `written`: all of them; those after the pieces of `known`, which it
    continues, are joined."""
    count, size = (len(known.pieces), known.size) if known else (0, 0)
    pieces = [*written[:count], *_joined(written[count:])]  # the last known one may have become longer
    return pieces, size + sum(_PIECE + (len(piece) if isinstance(piece, bytes) else 0) for piece in pieces[count:])


def _joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """The same with fewer pieces: new Contents that follow each other are one, except for large ones, which would be
    copied for that."""
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
