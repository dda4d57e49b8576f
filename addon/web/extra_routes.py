"""What others serve at the control API's port: their routes, behind the same guard, and the words of their refusals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from starlette.routing import BaseRoute

from addon.web.problems import Dialect, Problem


@dataclass(frozen=True, slots=True)
class ExtraRoutes:
    """`routes`: those of a `describe.group`. `dialects`: for each path whose callers know no problem documents, and all
    that is below it, their own form."""

    routes: Sequence[BaseRoute] = ()
    dialects: Mapping[str, Dialect] = field(default_factory=dict)

    def dialect(self, path: str) -> Dialect:
        for prefix, dialect in self.dialects.items():
            if path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/"):
                return dialect
        return Problem.response
