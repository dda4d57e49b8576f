"""Additions to the OpenAPI document that handler signatures do not give: answers with examples, and refusals."""

import http
from collections.abc import Callable
from typing import Any

from addon.web.problems import MEDIA_TYPE, ProblemBody
from addon.web.routing import DirectRoute

# for `openapi_extra`: the operation needs no token
PUBLIC: dict[str, Any] = {"security": []}

type Responses = dict[int | str, dict[str, Any]]

_REFERENCE = {"$ref": f"#/components/schemas/{ProblemBody.__name__}"}
_EXAMPLE = {"type": "about:blank", "title": "Unprocessable Content", "status": 422}
REFUSED: dict[str, Any] = {
    "description": "A refusal: what is wrong, and in which field",
    "content": {
        MEDIA_TYPE: {
            "schema": _REFERENCE,
            "example": _EXAMPLE | {"detail": "limit: '0' does not fit: must be greater than or equal to 1"},
        }
    },
}
"""Any refusal of an operation, unless its path has its own form of refusals."""

_TOKEN = {401: "No token, or one that is unknown or revoked"}
_PLACE = {403: "A Host that is not this machine, a page of another origin, or a token without the needed right"}
_STORE = {503: "The store does not answer, a power failure may undo the change, or the proxy is ending"}
_BODY = {
    400: "The body is not JSON that can be stored",
    413: "The body is larger than graft_max_body",
    415: "The body is not application/json",
}
_FITS = {422: "A field, a parameter or a tool is not valid"}


class Group:
    """One group of routes. Its methods decorate handlers, and take what FastAPI's take."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.routes: list[DirectRoute] = []

    def _add[H: Callable[..., Any]](self, method: str, path: str, described: dict[str, Any]) -> Callable[[H], H]:
        def add(handler: H) -> H:
            self.routes.append(DirectRoute(path, handler, methods=[method], tags=[self.tag], **described))
            return handler

        return add

    def get[H: Callable[..., Any]](self, path: str, **described: Any) -> Callable[[H], H]:
        return self._add("GET", path, described)

    def post[H: Callable[..., Any]](self, path: str, **described: Any) -> Callable[[H], H]:
        return self._add("POST", path, described)

    def put[H: Callable[..., Any]](self, path: str, **described: Any) -> Callable[[H], H]:
        return self._add("PUT", path, described)

    def patch[H: Callable[..., Any]](self, path: str, **described: Any) -> Callable[[H], H]:
        return self._add("PATCH", path, described)

    def delete[H: Callable[..., Any]](self, path: str, **described: Any) -> Callable[[H], H]:
        return self._add("DELETE", path, described)


def answers(
    example: Any,
    model: Any = None,
    *,
    media_type: str = "application/json",
    refused: dict[str, Any] = REFUSED,
    **problems: str,
) -> Responses:
    """The `responses=` of an operation: its success and its own refusals, as `p404="why"`. `refused`: the form of
    refusals at its path."""
    success: dict[str, Any] = {
        "description": "Success",
        "content": {media_type: {"example": example}},
    }
    if model is not None:
        success["model"] = model
    return {200: success, **_refusals(problems, refused)}


def nothing(description: str, **problems: str) -> Responses:
    """The `responses=` of an operation that answers 204."""
    return {204: {"description": description}, **_refusals(problems, REFUSED)}


def body_example(example: Any, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """For `openapi_extra`: an example of the body, and its schema if the handler's signature has none."""
    if schema is None:
        return {"requestBody": {"content": {"application/json": {"example": example}}}}
    return {"requestBody": {"required": True, "content": {"application/json": {"example": example, "schema": schema}}}}


def add_refusals(operation: dict[str, Any]) -> None:
    """Add the refusals that all operations of this kind have in common."""
    responses = operation["responses"]
    form, is_open = responses["default"], operation.get("security") == []
    common = _PLACE if is_open else _TOKEN | _PLACE | _STORE
    if "requestBody" in operation:
        common = common | _BODY
    if "requestBody" in operation or "parameters" in operation:
        fits = next(iter(_FITS.values()))
        common = common | (_FITS if MEDIA_TYPE in form["content"] else {400: fits})
    for status, why in common.items():
        responses.setdefault(str(status), _refusal(status, why, form))
    operation["responses"] = dict(sorted(responses.items()))


def _refusals(problems: dict[str, str], form: dict[str, Any]) -> Responses:
    own: Responses = {int(name[1:]): _refusal(int(name[1:]), why, form) for name, why in problems.items()}
    return {**own, "default": form}


def _refusal(status: int, why: str, form: dict[str, Any]) -> dict[str, Any]:
    """`form`, for one status."""
    ((media_type, content),) = form["content"].items()
    if media_type == MEDIA_TYPE:
        title = http.HTTPStatus(status).phrase
        content = content | {"example": _EXAMPLE | {"title": title, "status": status, "detail": why}}
    return {"description": why, "content": {media_type: content}}
