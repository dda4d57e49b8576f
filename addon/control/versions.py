"""A session's version as an ETag, so that a change does not overwrite another caller's change."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from addon.core.framing.documents import Document
from addon.web.api import ApiContext
from addon.web.problems import Problem
from store.base import VersionChanged
from store.models import Session

IF_MATCH: Document = {
    "name": "If-Match",
    "in": "header",
    "description": "The ETag of the session to change: refused (412) if the session has changed since.",
    "schema": {"type": "string"},
}
IF_NONE_MATCH: Document = {
    "name": "If-None-Match",
    "in": "header",
    "description": "`*`: refused (412) if the session has a toolset.",
    "schema": {"type": "string", "const": "*"},
}


def with_etag(answer: Response, api: ApiContext, version: int) -> Response:
    """The answer with the session's version as its ETag."""
    answer.headers["ETag"] = etag_of(api, version)
    return answer


def etag_of(api: ApiContext, version: int) -> str:
    return f'"{api.store.epoch}-{version}"'


async def update_session[T](
    api: ApiContext, request: Request | None, session: str, change: Callable[[Session | None, int], Awaitable[T]]
) -> T:
    """Returns the result of `change`, which takes the session's record and version and writes only to that version. If
    another caller wrote first, `change` is called again. On return, the change is on disk. Raises Problem (412) if the
    caller expects another version. `request` None: the caller expects none."""
    while True:
        record, version, _ = await api.store.snapshot(session)
        if request is not None:
            _check(api, request, record, version)
        try:
            result = await change(record, version)
        except VersionChanged:
            continue
        await api.store.sync()
        return result


def _check(api: ApiContext, request: Request, record: Session | None, version: int) -> None:
    wanted = request.headers.get("if-match")
    if wanted is not None and (record is None or wanted != etag_of(api, version)):
        raise Problem(412, "If-Match: the session has changed since this ETag: read it again", field="If-Match")
    if request.headers.get("if-none-match") == "*" and record is not None and record.toolset is not None:
        raise Problem(412, "If-None-Match: the session already has a toolset: read it first", field="If-None-Match")
