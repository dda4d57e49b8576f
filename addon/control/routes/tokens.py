"""Additional tokens; only callers with the scope `admin` make, list and revoke them."""

import logging
from collections.abc import Callable
from typing import Annotated

from fastapi import Body
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from addon.web.access import Right
from addon.web.api import ApiDep, CallerDep, answers, body_example, nothing, reply, routes_of
from addon.web.problems import Problem
from addon.web.tokens import Name, Token
from store.models import SessionName

logger = logging.getLogger("toolgraft")

router = routes_of("tokens")

_TOKEN = {"id": "1f3a9c07", "name": "ci", "scopes": ["ask"], "session": "default", "created_at": 1790000000.0}


class NewToken(BaseModel):
    model_config = ConfigDict(extra="forbid")

    scopes: list[Right] = Field(min_length=1, description="The token's scopes.")
    session: SessionName | None = Field(
        None, description="The only session that the token can use; all sessions if absent."
    )
    own_session: bool = Field(False, description="The token is for the proxy's own session (`graft_session`).")
    name: Name = Field("", description="A note on what the token is for.")


class MadeToken(Token):
    token: str = Field(description="The text that the token's owner sends. It is not shown again.")


class TokenList(BaseModel):
    items: list[Token]


def _use_tokens[T](action: Callable[[], T]) -> T:
    try:
        return action()
    except OSError as error:
        logger.error("%s", error)
        raise Problem(503, "the tokens cannot be read or stored; see the proxy's log") from None


@router.post(
    "/v1/tokens",
    summary="Make a token",
    responses=answers(_TOKEN | {"token": "tg_1f3a9c07_…"}, MadeToken),
    openapi_extra=body_example({"scopes": ["ask"], "session": "default", "name": "ci"}),
)
async def make_token(api: ApiDep, caller: CallerDep, new: Annotated[NewToken, Body()]) -> Response:
    """`ask` allows only the front doors; `read` shows everything; `approve` decides on calls; `worker` registers
    workers' tools, claims calls and answers them; `admin` does everything."""
    session = new.session or (api.settings.session if new.own_session else None)
    async with api.audit.action(caller, "token.make", scopes=new.scopes, session=session, for_name=new.name):
        made, token = _use_tokens(lambda: api.tokens.make(new.scopes, session, new.name))
    return reply(MadeToken(**made.model_dump(), token=token))


@router.get("/v1/tokens", summary="List the tokens", responses=answers({"items": [_TOKEN]}, TokenList))
async def list_tokens(api: ApiDep) -> Response:
    """Oldest first, without their secrets. The proxy's own token is not listed."""
    return reply(TokenList(items=_use_tokens(api.tokens.listed)))


@router.delete(
    "/v1/tokens/{token_id}",
    summary="Revoke a token",
    status_code=204,
    responses=nothing("The token is no longer accepted.", p404="No such token"),
)
async def revoke_token(api: ApiDep, caller: CallerDep, token_id: str) -> Response:
    async with api.audit.action(caller, "token.revoke", revoked=token_id):
        if not _use_tokens(lambda: api.tokens.revoke(token_id)):
            raise Problem(404, "there is no such token")
    return Response(status_code=204)
