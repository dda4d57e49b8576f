"""Additional routes at the control API's port, with the same guard, and the form of their refusals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from starlette.routing import BaseRoute, Route

from addon.core.framing.documents import Document
from addon.web.problems import Dialect, Problem


@dataclass(frozen=True, slots=True)
class ExtraRoutes:
    """`public`: routes that need no token. `dialects`: by path, and for everything below it, the form of refusals for
    callers that do not know problem documents. `paths`: the part of the OpenAPI document for routes that are not
    FastAPI's."""

    routes: Sequence[BaseRoute] = ()
    public: Sequence[BaseRoute] = ()
    dialects: Mapping[str, Dialect] = field(default_factory=dict)
    paths: Mapping[str, Document] = field(default_factory=dict)

    def __or__(self, other: "ExtraRoutes") -> "ExtraRoutes":
        return ExtraRoutes(
            [*self.routes, *other.routes],
            [*self.public, *other.public],
            {**self.dialects, **other.dialects},
            {**self.paths, **other.paths},
        )

    @property
    def open_paths(self) -> list[str]:
        return [route.path for route in self.public if isinstance(route, Route)]

    def dialect(self, path: str) -> Dialect:
        for prefix, dialect in self.dialects.items():
            if path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/"):
                return dialect
        return Problem.response
