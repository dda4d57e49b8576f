"""The index of paths leads to the same endpoints as trying the patterns of all routes."""

from typing import Any

import pytest
from starlette.responses import Response
from starlette.routing import Router
from starlette.testclient import TestClient

from addon.web.routing import ApiContext, ApiDep, DirectRoute, IndexedRouter, reply


def route(path: str, answer: str, *methods: str) -> DirectRoute:
    if "{name}" in path:

        async def with_name(api: ApiDep, name: str) -> Response:
            return reply([answer, name])

        return DirectRoute(path, with_name, methods=methods, openapi_extra={"security": []})

    async def endpoint(api: ApiDep) -> Response:
        return reply([answer])

    return DirectRoute(path, endpoint, methods=methods, openapi_extra={"security": []})


ROUTES = [
    route("/v1/things", "list", "GET"),
    route("/v1/things", "create", "POST"),
    route("/v1/things/{name}", "one", "GET"),
    route("/v1/things/first", "hidden behind a pattern", "GET"),
    route("/v1/things/first", "deletes", "DELETE"),
]


async def no_route(scope: Any, receive: Any, send: Any) -> None:
    await Response("no route", 404)(scope, receive, send)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("path", ["/v1/things", "/v1/things/first", "/v1/things/x", "/v1/things/", "/elsewhere"])
def test_the_index_changes_no_answer(method: str, path: str) -> None:
    answers = []
    for router in (IndexedRouter(ROUTES, no_route), Router(ROUTES, redirect_slashes=False, default=no_route)):

        async def app(scope: Any, receive: Any, send: Any, router: Router = router) -> None:
            await router({**scope, "api": object.__new__(ApiContext)}, receive, send)

        got = TestClient(app).request(method, path)
        answers.append((got.status_code, got.content, got.headers.get("allow")))
    assert answers[0] == answers[1]


def test_a_path_without_parameters_tries_no_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    router = IndexedRouter(ROUTES, no_route)
    monkeypatch.setattr(DirectRoute, "matches", lambda *_: pytest.fail("a pattern was tried"))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await router({**scope, "api": object.__new__(ApiContext)}, receive, send)

    assert TestClient(app).post("/v1/things").json() == ["create"]
