"""What the two halves of one exchange share, and what can become of a request."""

from dataclasses import dataclass, field

import xxhash

from addon.core.answers.answer import AnswerRewriter, ToolNames
from addon.core.framing.documents import Document
from addon.core.history.keys import Keys
from addon.core.history.request import Request
from addon.core.tools.tool_plan import ToolPlan
from addon.graft.session_config import SessionConfig
from addon.surfaces.base import Target
from addon.surfaces.wire import Wire
from store.models import Step


@dataclass(frozen=True, slots=True)
class Paused:
    """An answer whose rest the client may ask for. `added`, `mode` and `rounds` are of the last request that a loop
    made for it, `steps` and `visible` what its rounds before came to."""

    answer: AnswerRewriter
    added: tuple[Document, ...] = ()
    mode: str | None = None
    rounds: int = 1
    steps: tuple[Step, ...] = ()
    visible: tuple[Document, ...] = ()

    @property
    def has_calls(self) -> bool:
        """Whether calls of the answer were left to others: no loop runs those that are still to come."""
        return any(state.captured for state in self.answer.candidates.values())


@dataclass(slots=True)
class Exchange:
    """A request that went upstream with grafted tools; its answer is captured with what is here.

    `request` is what the client sent: the ledger knows turns by what the client remembers, under these `keys`.
    `resumes` is the answer that this request continues, by its continuationToken. `notes`: turns without calls
    are noted, so that none is taken for one that hides some. `sent` is where the client sent what, for `request_key`;
    `proxy_id` is the proxy that makes the answer.
    """

    wire: Wire
    config: SessionConfig
    plan: ToolPlan
    model: str
    request: Request
    keys: Keys
    resumes: Paused | None = None
    notes: bool = True
    sent: tuple[str, bytes] | None = None
    proxy_id: str | None = None

    @property
    def target(self) -> Target:
        return self.wire.target

    @property
    def request_key(self) -> bytes:
        """By what the same request, sent again, finds this answer if it breaks off; b"" if it never does. Made where it
        is needed: few answers hold calls, and bodies are long."""
        if self.sent is None:
            return b""
        url, body = self.sent
        digest = xxhash.xxh3_128_digest
        return self.keys.request(digest(url.encode("utf-8", "surrogatepass")) + digest(body))

    @property
    def naming(self) -> ToolNames:
        """Made where it is needed: few answers hold calls."""
        return ToolNames({used: name for name, used in self.plan.names.items()}, all_grafted=self.config.strips)


@dataclass(frozen=True, slots=True)
class Forward:
    """Goes upstream with this body; `exchange` None: nothing is to be done with the answer, but for `heard`: what it
    says is to be noted, where that is not None."""

    body: bytes
    exchange: Exchange | None = None
    noted: Exchange | None = field(default=None, compare=False)


STORE_FAILED = "the store does not answer; the proxy's log has more"
"""All that clients and models are told: what a store says names files of the user's."""


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
