"""A request to a model, as the proxy received it."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from addon.core.security.secrets import Fields
from addon.surfaces.base import Target


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request before any processing, made once at a proxy port or a front door. It holds the client's secrets, so it
    must stay in this process.

    `session`: its name. `body`: decompressed. `url`, `fields`: the client's URL and headers. `asker`: who asks, as in
    `core.history.asker`, or its digest. `takes_ids`: whether this version of the API supports ids of calls. `turn_ids`:
    the ledger's turn ids of Contents, by their index, where known. `at_door`: a front door made the Gemini request.
    """

    target: Target
    session: str
    body: bytes
    method: str = "POST"
    url: str = ""
    fields: Fields = ()
    asker: str | bytes = ""
    user_agent: str = ""
    takes_ids: bool = True
    turn_ids: Mapping[int, str] = MappingProxyType({})
    at_door: bool = False
