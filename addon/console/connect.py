"""The page *Connect*: lines that point a kind of client at this proxy, and whether its first request has arrived."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from addon.console.filled_forms import OrEmpty
from addon.console.rendering import page
from addon.control.addresses import first_of, read_addresses
from addon.control.routes.requests import RequestsQuery, records
from addon.web.access import needs
from addon.web.api import ApiDep, CallerDep, own_query, routes_of
from store.models import SessionName


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of clients. `agents`: parts of its user agent, in lower case; empty: any user agent."""

    name: str
    agents: tuple[str, ...] = ()


CLIENTS = {
    "gemini-cli": Kind("gemini-cli", ("geminicli",)),
    "python": Kind("google-genai (Python)", ("google-genai-sdk", "gl-python")),
    "javascript": Kind("@google/genai (JavaScript)", ("google-genai-sdk", "gl-node")),
    "curl": Kind("curl", ("curl/",)),
    "run": Kind("Antigravity, and other clients without a base URL"),
    "env": Kind("any other client, by HTTPS proxy"),
    "openai": Kind("OpenAI's Responses API", ("openai",)),
}


@dataclass(frozen=True, slots=True)
class Client:
    """`key`: of CLIENTS. `lines`: for a shell or a program. `note`: further requirements."""

    key: str
    lines: str
    note: str = ""

    @property
    def name(self) -> str:
        return CLIENTS[self.key].name


def is_from(key: str, user_agent: str) -> bool:
    """Whether a request with this user agent may come from this kind of client."""
    return all(part in user_agent.lower() for part in CLIENTS[key].agents)


def clients(addresses: dict[str, Any], control: str, session: str) -> list[Client]:
    """`addresses`: from the state folder's `proxy.json`. `control`: the control API's URL, as used by this page."""
    found: list[Client] = []
    if reverse := first_of(addresses, "reverse"):
        base = reverse if session == "default" else f"{reverse}/@{session}"
        found += [
            Client("gemini-cli", f"export GOOGLE_GEMINI_BASE_URL={base} CODE_ASSIST_ENDPOINT={base}\ngemini"),
            Client(
                "python",
                f'client = genai.Client(api_key="…", http_options={{"base_url": "{base}"}})',
            ),
            Client(
                "javascript",
                f'const ai = new GoogleGenAI({{ apiKey: "…", httpOptions: {{ baseUrl: "{base}" }} }});',
            ),
            Client(
                "curl",
                f"curl {base}/v1beta/models/gemini-3-flash-preview:generateContent \\\n"
                '  -H "x-goog-api-key: $GEMINI_API_KEY" -H "content-type: application/json" \\\n'
                """  -d '{"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}'""",
            ),
        ]
    if first_of(addresses, "regular"):
        named = "" if session == "default" else f" --session {session}"
        found += [
            Client(
                "run",
                f"toolgraft run{named} -- agy",
                "The regular proxy decrypts only connections to models' hosts. Nothing is set outside the client.",
            ),
            Client(
                "env",
                f'eval "$(toolgraft env --proxy{named})"',
                "It names the proxy and a file of certificates that the client must trust; only connections to models' "
                "hosts are decrypted.",
            ),
        ]
    found.append(
        Client(
            "openai",
            f"export OPENAI_BASE_URL={control}/v1\nexport OPENAI_API_KEY=…",
            "The key is a token that may ask: toolgraft token new --scope ask",
        )
    )
    return found


router = routes_of("console")

_MOST = 1000
"""The most requests that are searched."""


def _known(value: str) -> str:
    if value not in CLIENTS:
        raise ValueError(f"must be one of {', '.join(CLIENTS)}")
    return value


class _Connect(BaseModel):
    """`client`: a key of CLIENTS."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    session: OrEmpty[SessionName] = None
    client: OrEmpty[Annotated[str, BeforeValidator(_known)]] = None


class _Awaited(BaseModel):
    """`since`: the Unix time when the page was opened."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    session: SessionName
    client: Annotated[str, BeforeValidator(_known)]
    since: float = Field(ge=0, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Arrival:
    """The records of the oldest requests since a time: of the client in the session; of the client in another session;
    of another client in the session."""

    first: dict[str, Any] | None = None
    elsewhere: dict[str, Any] | None = None
    other: dict[str, Any] | None = None


@router.get("/console/parts/connect", include_in_schema=False)
@needs("read", "approve")
async def connect(api: ApiDep, request: Request, query: Annotated[_Connect, own_query(_Connect)]) -> Response:
    session = query.session or api.settings.session
    control = f"{request.url.scheme}://{request.url.netloc}"
    offered = clients(read_addresses(api.settings.state), control, session)
    awaited = _Awaited(session=session, client=query.client, since=time.time()) if query.client else None
    chosen = [client for client in offered if awaited is None or client.key == awaited.client]
    return page(
        "connect.html",
        {
            "session": session,
            "offered": offered,
            "clients": chosen,
            "awaited": awaited,
            "arrival": Arrival(),
            "names": CLIENTS,
        },
    )


@router.get("/console/parts/arrival", include_in_schema=False)
@needs("read")
async def show_arrival(api: ApiDep, caller: CallerDep, query: Annotated[_Awaited, own_query(_Awaited)]) -> Response:
    listed = records(api, RequestsQuery.model_validate({"limit": _MOST, "session": caller.session}))
    return page("arrival.html", {"awaited": query, "arrival": arrival_of(query, listed), "names": CLIENTS})


def arrival_of(awaited: _Awaited, listed: Sequence[dict[str, Any]]) -> Arrival:
    """`listed`: the requests' records, newest first."""
    found: dict[str, dict[str, Any]] = {}
    for record in listed:
        if record["began_at"] < awaited.since:
            continue
        is_here = record["session"] == awaited.session
        if is_from(awaited.client, record["user_agent"]):
            found["first" if is_here else "elsewhere"] = record
        elif is_here:
            found["other"] = record
    return Arrival(**found)
