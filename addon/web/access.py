"""The rights of a caller, and the rights that a route needs.

A route declares its rights with `needs`; without it, the route needs `admin`. A token for one session can use only that
session, and no route that belongs to no session.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import BaseModel
from starlette.types import Scope

from addon.web.problems import Problem

Right = Literal["ask", "read", "approve", "worker", "admin"]
RIGHTS: tuple[Right, ...] = get_args(Right)

SESSION_HEADER = "x-graft-session"


@dataclass(frozen=True, slots=True)
class Access:
    """The rights of one caller. `token`: the id of its token. `session` None: all sessions."""

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
            raise Problem(403, f"this token has the scopes {', '.join(sorted(self.scopes))}; needed: {needed}")

    def check_session(self, session: str) -> None:
        """Raises Problem (403)."""
        if self.session is not None and session != self.session:
            raise Problem(403, f"this token is only for the session {self.session}", field="session")

    def in_session[M: BaseModel](self, given: M) -> M:
        """Parameters with a `session`; for a token of one session, with that one. Raises Problem (403)."""
        if self.session is None:
            return given
        self.check_session(dict(given)["session"] or self.session)
        return given.model_copy(update={"session": self.session})


OWNER = Access("own", frozenset({"admin"}))
"""A caller with the proxy's own token."""

ANYONE = Access("none", frozenset({"admin"}))
"""Any caller, if no token is required."""


def needs[F: Callable[..., Any]](*rights: Right) -> Callable[[F], F]:
    """Restricts a route's handler to callers with one of these rights. Goes below the route decorator."""

    def mark(handler: F) -> F:
        handler.__dict__["needs"] = rights
        return handler

    return mark


def needs_of(handler: Callable[..., Any]) -> tuple[Right, ...]:
    rights: tuple[Right, ...] = getattr(handler, "needs", ("admin",))
    return rights


def name_session(scope: Scope) -> None:
    """Set the session header of a request if its caller's token is for one session. Raises Problem (403)."""
    access: Access = scope["access"]
    if access.session is None:
        return
    header = SESSION_HEADER.encode()
    others = []
    for name, value in scope["headers"]:
        if name == header:
            access.check_session(value.decode("latin-1"))
        else:
            others.append((name, value))
    scope["headers"] = [*others, (header, access.session.encode())]
