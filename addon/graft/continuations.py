"""Caches answers that end with a continuationToken until the client asks for the rest."""

import base64

from addon.graft.exchange import Paused
from store.budget import Budget, Share

_STANDARD = str.maketrans("-_", "+/")


class Continuations:
    def __init__(self, budget: Budget) -> None:
        self._paused: Share[tuple[str, bytes | str], Paused] = budget.share("paused answers", 1 / 16)

    def keep(self, session: str, token: str, paused: Paused) -> None:
        self._paused.put((session, _bytes_of(token)), paused, len(token) + paused.size)

    def find(self, session: str, token: str) -> Paused | None:
        return self._paused.get((session, _bytes_of(token)))


def _bytes_of(token: str) -> bytes | str:
    """The token's bytes. Clients may send it back in base64's other alphabet."""
    try:
        return base64.b64decode(
            token.translate(_STANDARD).rstrip("=") + "=" * (-len(token.rstrip("=")) % 4), validate=True
        )
    except ValueError:
        return token
