"""Who asks the control API, what a token may do, and what a route asks of it.

A route states what it needs by `needs`; one that states nothing is for `admin` alone. A token for one session reaches
that session, and nothing that is of no session.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from addon.web.problems import Problem

Right = Literal["ask", "read", "approve", "worker", "admin"]
RIGHTS: tuple[Right, ...] = get_args(Right)

SESSION_HEADER = "x-graft-session"


@dataclass(frozen=True, slots=True)
class Access:
    """What one caller may do. `token`: the id of its token. `session` None: all of them."""

    token: str
    scopes: frozenset[Right]
    session: str | None = None
    name: str = ""

    def allows(self, *rights: Right) -> bool:
        """Whether the caller has one of these rights."""
        return "admin" in self.scopes or not self.scopes.isdisjoint(rights)

    def check(self, *rights: Right) -> None:
        """Raises Problem (403)."""
        if not self.allows(*rights):
            needed = " or ".join(dict.fromkeys((*rights, "admin")))
            raise Problem(403, f"this token may {', '.join(sorted(self.scopes))}; here one is needed that may {needed}")

    def check_session(self, session: str) -> None:
        """Raises Problem (403)."""
        if self.session is not None and session != self.session:
            raise Problem(403, f"this token is for the session {self.session} alone", field="session")


OWNER = Access("own", frozenset({"admin"}))
"""Whoever has the proxy's own token."""

ANYONE = Access("none", frozenset({"admin"}))
"""Where no token is asked for."""


def needs[F: Callable[..., Any]](*rights: Right) -> Callable[[F], F]:
    """Marks a route's handler as one for callers that have one of these rights. Stands below the decorator that makes
    it a route."""

    def mark(handler: F) -> F:
        handler.__dict__["needs"] = rights
        return handler

    return mark


def needs_of(handler: Callable[..., Any]) -> tuple[Right, ...]:
    rights: tuple[Right, ...] = getattr(handler, "needs", ("admin",))
    return rights
