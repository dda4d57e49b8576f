"""Routes of others at the control API's port: the same guard, and refusals in the words of their callers."""

from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from addon.control.app import ControlApp, create_app
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from addon.web.api import ApiDep, ExtraRoutes, answers, reply, routes_of
from addon.web.problems import Problem, parse
from store.base import Store
from tests.control.conftest import ADDRESS, TOKEN

router = routes_of("parrot")


@router.post("/v1/parrot/{mood}", summary="Say it again", responses=answers({"said": 1}))
async def say_again(api: ApiDep, request: Request, mood: str) -> Response:
    if mood == "angry":
        raise RuntimeError("a secret of the parrot's")
    return reply({"said": parse(await request.body())})


def squawked(problem: Problem) -> Response:
    return JSONResponse({"squawk": problem.detail}, problem.status, problem.headers)


@pytest.fixture
def app(store: Store, settings: Settings, metrics: Metrics) -> ControlApp:
    extra_routes = ExtraRoutes(router.routes, dialects={"/v1/parrot": squawked})
    return create_app(
        store=store, settings=settings, token=TOKEN, metrics=metrics, version="1", extra_routes=extra_routes
    )


async def test_its_routes_are_served_and_described(client: httpx2.AsyncClient) -> None:
    assert (await client.post("/v1/parrot/calm", json="hello")).json() == {"said": "hello"}
    assert "/v1/parrot/{mood}" in (await client.get("/openapi.json")).json()["paths"]


@pytest.mark.parametrize(
    ("status", "method", "path", "more"),
    [
        (401, "POST", "/v1/parrot/calm", {"headers": {"authorization": "Bearer wrong"}}),
        (403, "POST", "/v1/parrot/calm", {"headers": {"host": "evil.example"}}),
        (403, "POST", "/v1/parrot/calm", {"headers": {"origin": "https://evil.example"}}),
        (415, "POST", "/v1/parrot/calm", {"content": b"{}", "headers": {"content-type": "text/plain"}}),
        (413, "POST", "/v1/parrot/calm", {"json": "x" * 3000}),
        (400, "POST", "/v1/parrot/calm", {"content": b"{", "headers": {"content-type": "application/json"}}),
        (404, "GET", "/v1/parrot", {}),
        (404, "GET", "/v1/parrot/a/b", {}),
        (405, "GET", "/v1/parrot/calm", {}),
        (500, "POST", "/v1/parrot/angry", {"json": 1}),
    ],
)
async def test_every_refusal_is_in_its_dialect(
    client: httpx2.AsyncClient, status: int, method: str, path: str, more: dict[str, Any]
) -> None:
    answer = await client.request(method, path, **more)
    assert (answer.status_code, list(answer.json())) == (status, ["squawk"])
    assert "secret" not in answer.text


@pytest.mark.parametrize("path", ["/v1/parrots", "/v1", "/v1/calls/none"])
async def test_other_paths_keep_their_own(client: httpx2.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert (await client.get(f"{ADDRESS}{path}", headers={"authorization": ""})).status_code == 401
