"""Further routes at the control API's port, behind the same guard, and the form of their refusals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from starlette.routing import BaseRoute

from addon.web.problems import Dialect, Problem


@dataclass(frozen=True, slots=True)
class ExtraRoutes:
    """`routes`: the routes of a `describe.Group`. `dialects`: the form of refusals for paths whose callers do not know
    problem documents, and for everything below these paths."""

    routes: Sequence[BaseRoute] = ()
    dialects: Mapping[str, Dialect] = field(default_factory=dict)

    def __or__(self, other: "ExtraRoutes") -> "ExtraRoutes":
        return ExtraRoutes([*self.routes, *other.routes], {**self.dialects, **other.dialects})

    def dialect(self, path: str) -> Dialect:
        for prefix, dialect in self.dialects.items():
            if path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/"):
                return dialect
        return Problem.response
