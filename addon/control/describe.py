"""What the OpenAPI document says beside what the handlers' signatures say: answers with their examples, problems."""

import http
from typing import Any

from fastapi import APIRouter

from addon.control.problems import MEDIA_TYPE, ProblemBody
from addon.control.routing import DirectRoute

# for `openapi_extra`: the operation needs no token
PUBLIC: dict[str, Any] = {"security": []}

type Responses = dict[int | str, dict[str, Any]]

_REFERENCE = {"$ref": f"#/components/schemas/{ProblemBody.__name__}"}


def group(tag: str) -> APIRouter:
    """The router of one group of routes."""
    return APIRouter(route_class=DirectRoute, tags=[tag])


def answers(example: Any, model: Any = None, *, media_type: str = "application/json", **problems: str) -> Responses:
    """The `responses=` of an operation: its success, and the refusals that are its own, as `p404="why"`."""
    success: dict[str, Any] = {
        "description": "Success",
        "content": {media_type: {"example": example}},
    }
    if model is not None:
        success["model"] = model
    own: Responses = {int(name[1:]): _problem(int(name[1:]), why) for name, why in problems.items()}
    return {200: success, **own, "default": _REFUSED}


def nothing(description: str) -> Responses:
    """The `responses=` of an operation that answers 204."""
    return {204: {"description": description}, "default": _REFUSED}


def body_example(example: Any) -> dict[str, Any]:
    """For `openapi_extra`: the example of a request's body."""
    return {"requestBody": {"content": {"application/json": {"example": example}}}}


def _problem(status: int, why: str) -> dict[str, Any]:
    example = {"type": "about:blank", "title": http.HTTPStatus(status).phrase, "status": status, "detail": why}
    return {"description": why, "content": {MEDIA_TYPE: {"schema": _REFERENCE, "example": example}}}


_REFUSED = _problem(422, "limit: '0' does not fit: must be greater than or equal to 1") | {
    "description": "A refusal: what is wrong, and where"
}
