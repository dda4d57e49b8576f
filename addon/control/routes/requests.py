"""Running requests to models and the last ended ones, in memory: the fields of the log's lines, and some bodies."""

import asyncio
import json
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from addon.control.addresses import first_of, read_addresses
from addon.control.differences import differences
from addon.core.security.secrets import REMOVED_SECRET
from addon.core.security.untrusted import printable, printable_json
from addon.graft.grafter import GraftFailed
from addon.graft.replay import ClientRequest, RecordedRequest, ReplayedRequest, read_only, replay
from addon.monitoring.recent_requests import MOST, CleanRequest
from addon.surfaces.incoming import Operation
from addon.surfaces.registry import match_path
from addon.web.access import needs
from addon.web.api import ApiContext, ApiDep, answers, own_query, reply, routes_of
from addon.web.problems import Problem
from store.models import SessionName

router = routes_of("requests")

State = Literal["running", "done", "failed"]


class RequestCall(BaseModel):
    name: str
    call_id: str = Field(description="Empty: the call is not the proxy's.")
    arguments: str = Field(description="The values, as far as 80 characters reach. Secrets are left out.")
    state: str = Field(description="`running`, `done`, `failed`, `waiting` or `client`.")
    began: float | None = Field(description="Seconds after the request began; null: unknown.")
    seconds: float | None = Field(description="How long the request has waited for the call; null: unknown.")
    waited: float | None = Field(
        description="How much of that the call waited to be run: for other calls, an approval, a place; null: unknown."
    )


class RoundTime(BaseModel):
    began: float = Field(description="Seconds after the request began.")
    seconds: float
    state: Literal["running", "done"]


class RequestRecord(BaseModel):
    """The fields of the request's line in the log."""

    request_id: str
    turn_id: str = Field(description="The client's turn, if the model called tools. Empty: it did not.")
    has_bodies: bool = Field(description="Whether the request's bodies are kept (`graft_keep_requests`).")
    state: State
    began_at: float = Field(description="Unix time.")
    seconds: float = Field(description="So far, if it runs.")
    session: str
    surface: str
    operation: str
    model: str
    added_tools: int
    removed_client_tools: int
    calls: list[RequestCall]
    rounds: int = Field(description="The requests to the model.")
    round_times: list[RoundTime] = Field(description="Those of a loop, in order. Empty: there was no loop.")
    streamed: bool
    prompt_tokens: int
    output_tokens: int
    status: int | None = Field(description="null: the client has got none.")
    user_agent: str = Field(description="What the client calls itself, up to 200 characters. Empty: nothing.")
    end: str = Field(description="Why the answer broke off. Empty: it did not.")


class RequestRecords(BaseModel):
    items: list[RequestRecord]


class RequestsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    session: SessionName | None = Field(None, description="Only requests of this session.")
    tool: str | None = Field(None, description="Only requests with a call of this tool.")
    turn_id: str | None = Field(None, description="Only the request of this turn.")
    state: State | None = Field(None, description="Only requests in this state.")
    limit: int = Field(MOST, ge=1, le=1000, description="The most requests to list.")


_CALL = {
    "name": "get_weather",
    "call_id": "call_5d0c2f",
    "arguments": "Oslo",
    "state": "done",
    "began": 0.8,
    "seconds": 0.5,
    "waited": 0.0,
}
_ROUND = {"began": 0.0, "seconds": 0.8, "state": "done"}
_REQUEST = {
    "request_id": "req_9f3c02d10000002a",
    "turn_id": "turn_1f6c0a",
    "has_bodies": True,
    "state": "done",
    "began_at": 1793870000.0,
    "seconds": 1.9,
    "session": "default",
    "surface": "developer",
    "operation": "streamGenerateContent",
    "model": "gemini-3-flash-preview",
    "added_tools": 2,
    "removed_client_tools": 1,
    "calls": [_CALL],
    "rounds": 2,
    "round_times": [_ROUND, _ROUND | {"began": 1.3, "seconds": 0.6}],
    "streamed": True,
    "prompt_tokens": 1234,
    "output_tokens": 310,
    "status": 200,
    "user_agent": "google-genai-sdk/3.1.0 gl-python/3.13.5",
    "end": "",
}


@router.get(
    "/v1/requests",
    summary="List the last requests to models, newest first",
    responses=answers({"items": [_REQUEST]}, RequestRecords),
)
@needs("read")
async def list_requests(api: ApiDep, query: Annotated[RequestsQuery, own_query(RequestsQuery)]) -> Response:
    """Requests that run, and the last 100 that have ended, from memory: a restart forgets them."""
    return reply({"items": records(api, query)})


def records(api: ApiContext, query: RequestsQuery) -> Sequence[dict[str, Any]]:
    """Newest first."""
    matching = [
        one
        for one in api.recent.records()
        if query.session in (None, one["session"])
        and query.state in (None, one["state"])
        and query.turn_id in (None, one["turn_id"])
        and (query.tool is None or any(call["name"] == query.tool for call in one["calls"]))
    ]
    return matching[: query.limit]


# --- one request --------------------------------------------------------------------------------------------------


class RequestQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    session: SessionName | None = Field(None, description="The session that the request must be of.")


class SideQuery(RequestQuery):
    side: Literal["client", "sent"] = Field(
        "sent", description="`client`: as the client sent it; `sent`: as the proxy sent it to the model first."
    )


class Replayed(BaseModel):
    """The request that would go upstream if the client sent it now."""

    request_id: str
    changed: bool
    note: str = Field(description="What else there is to know.")
    differences: list[str] = Field(description="The lines of a unified diff of the JSON, from what was sent then.")


_MOST_LINES = 5000
"""The most lines of a diff."""

_ABSENT = "There is no such request, or its bodies are not kept"


@router.get(
    "/v1/requests/{request_id}",
    summary="Show a request",
    responses=answers(_REQUEST, RequestRecord, p404="There is no such request"),
)
@needs("read")
async def show_request(
    api: ApiDep, request_id: str, query: Annotated[RequestQuery, own_query(RequestQuery)]
) -> Response:
    return reply(find_record(api, request_id, query.session))


@router.get(
    "/v1/requests/{request_id}/body",
    summary="Show the body of a request",
    responses=answers({"contents": []}, dict[str, Any], p404=_ABSENT),
)
@needs("read")
async def show_body(api: ApiDep, request_id: str, query: Annotated[SideQuery, own_query(SideQuery)]) -> Response:
    """The bytes, without secrets. The first request of a loop is kept, not its later rounds: their turn has them."""
    found = find_bodies(api, request_id, query.session)
    return Response(_body_of(found, query.side), media_type="application/json")


@router.get(
    "/v1/requests/{request_id}/curl",
    summary="Write a request as a command line with curl",
    responses=answers({"command": "curl -X POST …"}, dict[str, str], p404=_ABSENT, p409="Its body is not text"),
)
@needs("read")
async def show_curl(api: ApiDep, request_id: str, query: Annotated[SideQuery, own_query(SideQuery)]) -> Response:
    """`client` goes through this proxy, `sent` straight to the model. Secrets are variables of the shell."""
    return reply({"command": curl_of(api, find_bodies(api, request_id, query.session), query.side)})


@router.get(
    "/v1/requests/{request_id}/replay",
    summary="Rewrite a request again, as it would be now",
    responses=answers(
        {"request_id": "req_9f3c02d10000002a", "changed": False, "note": "", "differences": []},
        Replayed,
        p404=_ABSENT,
        p503="The store does not answer",
    ),
)
@needs("read")
async def show_replay(
    api: ApiDep, request_id: str, query: Annotated[RequestQuery, own_query(RequestQuery)]
) -> Response:
    """Nothing is sent or stored. The session's present tools, results and settings are used."""
    return reply(await replayed(api, request_id, query.session))


def find_record(api: ApiContext, request_id: str, session: str | None) -> dict[str, Any]:
    """The record of this request. Raises Problem (404)."""
    found = api.recent.record(request_id)
    if found is None or session not in (None, found["session"]):
        raise Problem(404, "there is no such request: the last ones are kept, until the proxy ends")
    return found


def find_bodies(api: ApiContext, request_id: str, session: str | None) -> CleanRequest:
    """Raises Problem (404)."""
    find_record(api, request_id, session)
    found = api.recent.clean(request_id, api.store.secret)
    if found is None:
        raise Problem(404, f"the bodies of this request are not kept: {_kept(api)}")
    return found


def _kept(api: ApiContext) -> str:
    if not api.settings.keep_requests:
        return "graft_keep_requests is 0"
    return (
        f"those of the last {api.settings.keep_requests} are (graft_keep_requests), as far as they fit into 64 MiB and "
        "the session has tools"
    )


def _body_of(request: CleanRequest, side: str) -> bytes:
    return request.client if side == "client" else request.sent


def curl_of(api: ApiContext, request: CleanRequest, side: str) -> str:
    """Raises Problem (409)."""
    url, options = request.url, list[str]()
    if side == "client" and not request.at_door:
        addresses, parts = read_addresses(api.settings.state), urlsplit(request.url)
        if reverse := first_of(addresses, "reverse"):
            path = parts._replace(scheme="", netloc="").geturl()
            url = f"{reverse}/@{request.session}{path}"
        elif regular := first_of(addresses, "regular"):
            options = ["--proxy", regular, "--cacert", str(addresses.get("ca", ""))]
    try:
        return curl_command(
            request.method, url, request.headers, _body_of(request, side), secret=REMOVED_SECRET, options=options
        )
    except UnicodeDecodeError:
        raise Problem(409, "the body of this request is not text: GET …/body has its bytes") from None


async def replayed(api: ApiContext, request_id: str, session: str | None) -> Replayed:
    """Raises Problem (404, 409, 503)."""
    kept = find_bodies(api, request_id, session)
    path = urlsplit(kept.url)._replace(scheme="", netloc="").geturl()
    target = match_path(kept.method, path)
    if target is None or target.operation is Operation.LIVE:
        raise Problem(409, "this request cannot be rewritten again: no surface has its path")
    client = ClientRequest(
        kept.client, False, kept.session, keeps_tools=False, at_door=kept.at_door, turn_ids=kept.turn_ids
    )
    recorded = RecordedRequest(target, kept.method, path, kept.url, kept.sent, client, kept.asker)
    try:
        found = [
            one
            async for one in replay(
                [recorded], read_only(api.store), api.settings, session=None, toolset=None, shared=api.shared()
            )
        ]
    except GraftFailed as error:
        raise Problem(500, f"the request could not be rewritten: {error}") from None
    await asyncio.sleep(0)
    lines = _differences(found[0])
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"… and {len(lines) - _MOST_LINES} more lines"]
    return Replayed(request_id=request_id, changed=found[0].changed, note=found[0].note, differences=lines)


def _differences(found: ReplayedRequest) -> list[str]:
    before, after = (
        document if isinstance(document, str) else json.dumps(document, indent=2, ensure_ascii=False)
        for document in (found.before, found.after)
    )
    return differences(before, after, ("sent", "today"))


_LONGEST_ARGUMENT = 100_000
"""The most bytes of a body in an argument: Linux takes 128 KiB. Longer bodies are given on the standard input."""

_VARIABLES = {"x-goog-api-key": "$GEMINI_API_KEY", "authorization": "Bearer $ACCESS_TOKEN"}


_GLOB = frozenset("[]{}")
"""Characters that curl takes for ranges and lists of URLs."""


def curl_command(
    method: str, url: str, headers: Iterable[tuple[str, str]], body: bytes, *, secret: str, options: Iterable[str] = ()
) -> str:
    """`secret`: the text in `url` and `headers` that stands for a secret value. `options`: further arguments. The
    body's invisible characters become JSON escapes. Raises ValueError if the body is not UTF-8."""
    text = printable_json(body.decode())
    lines = [f"curl -X {shlex.quote(method)} {_quoted(url, secret, '$GEMINI_API_KEY')}"]
    if not _GLOB.isdisjoint(url):
        lines.append("--globoff")
    lines += [shlex.quote(printable(option)) for option in options]
    for name, value in headers:
        lines.append(f"-H {_quoted(f'{name}: {value}', secret, _VARIABLES.get(name.lower(), _variable(name)))}")
    if len(text.encode()) <= _LONGEST_ARGUMENT:
        return " \\\n  ".join([*lines, f"--data-raw {shlex.quote(text)}"])
    end = "END"
    while f"\n{end}\n" in f"\n{text}\n":
        end += "_"
    return " \\\n  ".join([*lines, f"--data-binary @- <<'{end}'"]) + f"\n{text}\n{end}"


def _quoted(text: str, secret: str, variable: str) -> str:
    """Quoted for a shell, with `variable` instead of the secret."""
    pieces = printable(text).split(secret)
    if len(pieces) == 1:
        return shlex.quote(pieces[0])
    return f'"{variable}"'.join(shlex.quote(piece) if piece else "" for piece in pieces)


def _variable(header: str) -> str:
    """The shell variable for a secret header."""
    return "$" + re.sub(r"[^A-Za-z0-9]", "_", header).upper()
