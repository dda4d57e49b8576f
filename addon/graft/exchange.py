"""What the two halves of one exchange share, and what can become of a request."""

from dataclasses import dataclass

from addon.core.answer import Answer, Naming
from addon.core.request import Request
from addon.core.tools import Plan
from addon.graft.scope import Scope
from addon.surfaces.base import Target
from addon.surfaces.wire import Wire


@dataclass(slots=True)
class Exchange:
    """A request that went upstream with grafted tools; its answer is captured with what is here.

    `request` is what the client sent: the ledger knows turns by what the client remembers. `resumes` is the answer
    that this request continues, after finishReason CONTINUATION.
    """

    wire: Wire
    scope: Scope
    plan: Plan
    model: str
    request: Request
    resumes: Answer | None = None

    @property
    def target(self) -> Target:
        return self.wire.target

    @property
    def naming(self) -> Naming:
        """Made where it is needed: few answers hold calls."""
        return Naming({used: name for name, used in self.plan.names.items()}, all_grafted=self.scope.strips)


@dataclass(frozen=True, slots=True)
class Forward:
    """Goes upstream with this body; `exchange` None: nothing is to be done with the answer."""

    body: bytes
    exchange: Exchange | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """Is answered here; nothing goes upstream."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The client hung up while its request waited; nothing goes upstream."""


Outcome = Forward | Reply | Abandoned
