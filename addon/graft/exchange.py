"""The state that one exchange's request and answer share, and the outcomes of a request."""

import base64
import secrets
from dataclasses import dataclass, field

import xxhash

from addon.core.answer import AnswerRewriter, ToolNames
from addon.core.framing.documents import Document, memory_of
from addon.core.history.keys import Keys
from addon.core.history.request import Request
from addon.core.summaries import Summary
from addon.core.tools.tool_plan import ToolPlan
from addon.graft.session_config import SessionConfig
from addon.surfaces.incoming import Incoming, Target
from addon.surfaces.surface import Wire
from store.budget import Budget, Share
from store.models import Step


@dataclass(frozen=True, slots=True)
class Paused:
    """An answer whose rest the client may request. `added`, `mode` and `rounds`: of the loop's last request. `steps`
    and `visible`: the result of the loop's earlier rounds."""

    answer: AnswerRewriter
    added: tuple[Document, ...] = ()
    mode: str | None = None
    rounds: int = 1
    steps: tuple[Step, ...] = ()
    visible: tuple[Document, ...] = ()

    @property
    def size(self) -> int:
        """The approximate memory use in bytes."""
        parts = [
            (state.true_parts, state.visible_parts, [call.args for call in state.captured])
            for state in self.answer.candidates.values()
        ]
        return 4096 + memory_of(self.added, [step.content for step in self.steps], self.visible, parts)

    @property
    def has_calls(self) -> bool:
        """Whether the answer already has calls that no loop runs. Then no loop runs its further calls either."""
        return any(state.captured for state in self.answer.candidates.values())


@dataclass(slots=True)
class Exchange:
    """A request that went upstream with grafted tools, and the state for capturing its answer.

    `request`: the client's; the ledger knows turns by the client's history, under these `keys`. `resumes`: the answer
    that this request continues with its continuationToken. `notes`: whether turns without calls are noted, so that none
    is mistaken for a turn with hidden calls. `before`: the id of the entry behind the history's last model turn,
    if any. `recorded`: the keys of the words of the turns that are entries or notes. `incoming`: for `request_key`.
    `proxy_id`: the proxy that makes the answer. `summary`: for the log line.
    """

    wire: Wire
    config: SessionConfig
    plan: ToolPlan
    model: str
    request: Request
    keys: Keys
    resumes: Paused | None = None
    notes: bool = True
    before: str = ""
    recorded: set[bytes] = field(default_factory=set)
    incoming: Incoming | None = None
    proxy_id: str | None = None
    summary: Summary = field(default_factory=lambda: Summary(""))

    @property
    def target(self) -> Target:
        return self.wire.target

    @property
    def request_key(self) -> bytes:
        """The key by which a retry finds this answer if it breaks off, or b"" if no retry can. Computed on demand: few
        answers hold calls, and bodies are long."""
        if self.incoming is None:
            return b""
        url, digest = self.incoming.url.encode("utf-8", "surrogatepass"), xxhash.xxh3_128_digest
        return self.keys.request(digest(url) + digest(self.incoming.body) + digest(self.incoming.sender))

    @property
    def naming(self) -> ToolNames:
        """The names of the tools in the answer. Built on demand: few answers hold calls."""
        names = {used: name for name, used in self.plan.names.items()}
        return ToolNames(names, frozenset() if self.config.strips and self.plan.grafts else self.plan.own)


@dataclass(frozen=True, slots=True)
class Forward:
    """Send the request upstream with this body. `exchange`: for capturing the answer, None if the answer passes
    unchanged. `noted`: for noting the turns of an unchanged answer, None for no notes. `summary`: None if the request
    could not be understood."""

    body: bytes
    exchange: Exchange | None = None
    noted: Exchange | None = field(default=None, compare=False)
    summary: Summary | None = field(default=None, compare=False)


STORE_FAILED = "the store does not answer; the proxy's log has more"
"""The whole message for clients and models: the store's error text contains paths of the user's files."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The proxy answers; nothing goes upstream."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The client hung up while its request waited; nothing goes upstream."""


Outcome = Forward | Reply | Abandoned


def new_turn_id() -> str:
    return f"turn_{secrets.token_hex(8)}"


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


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
