import contextlib
import importlib
import pkgutil
import re
import sqlite3
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import APIRouter

from addon.control import routes
from addon.control.app import ROUTERS, create_app
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from store.backends import sqlite
from store.base import NotDurable, OutcomeUnknown, Store, StoreUnavailable
from store.factory import open_url

OPERATIONS = {
    ("get", "/healthz"),
    ("get", "/healthz/live"),
    ("get", "/metrics"),
    ("get", "/v1/sessions"),
    ("get", "/v1/sessions/{session}"),
    ("patch", "/v1/sessions/{session}"),
    ("delete", "/v1/sessions/{session}"),
    ("get", "/v1/sessions/{session}/usage"),
    ("get", "/v1/sessions/{session}/tools"),
    ("put", "/v1/sessions/{session}/tools"),
    ("delete", "/v1/sessions/{session}/tools"),
    ("post", "/v1/sessions/{session}/tools/check"),
    ("post", "/v1/sessions/{session}/tools/{name}/try"),
    ("get", "/v1/calls"),
    ("get", "/v1/calls/{call_id}"),
    ("post", "/v1/calls/{call_id}/result"),
    ("post", "/v1/calls/claim"),
    ("post", "/v1/calls/{call_id}/renew"),
    ("post", "/v1/calls/{call_id}/approve"),
    ("delete", "/v1/sessions/{session}/always_approved/{name}"),
    ("post", "/v1/calls/{call_id}/deny"),
    ("post", "/v1/approvals/deny"),
    ("get", "/v1/turns"),
    ("get", "/v1/turns/{turn_id}"),
    ("get", "/v1/requests"),
    ("get", "/v1/requests/{request_id}"),
    ("get", "/v1/requests/{request_id}/body"),
    ("get", "/v1/requests/{request_id}/curl"),
    ("get", "/v1/requests/{request_id}/replay"),
    ("get", "/v1/events"),
    ("post", "/v1/tokens"),
    ("get", "/v1/tokens"),
    ("delete", "/v1/tokens/{token_id}"),
    ("get", "/v1/servers"),
    ("post", "/v1/servers/{server}/restart"),
    ("get", "/v1/config"),
    ("get", "/v1/mcp/held"),
    ("post", "/v1/mcp/accept"),
}


async def document(client: httpx2.AsyncClient) -> dict[str, Any]:
    described: dict[str, Any] = (await client.get("/openapi.json")).json()
    return described


def test_every_router_is_served() -> None:
    modules = [
        importlib.import_module(found.name) for found in pkgutil.iter_modules(routes.__path__, f"{routes.__name__}.")
    ]
    routers = [
        value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, APIRouter) and name != "public"
    ]
    assert len(routers) == len(ROUTERS)
    assert all(router.routes and router in ROUTERS for router in routers)


async def test_the_document_has_every_operation(client: httpx2.AsyncClient) -> None:
    paths = (await document(client))["paths"]
    assert {(method, path) for path, methods in paths.items() for method in methods} == OPERATIONS


async def test_every_operation_has_an_example_a_summary_and_problems(client: httpx2.AsyncClient) -> None:
    for path, methods in (await document(client))["paths"].items():
        for method, operation in methods.items():
            where = f"{method} {path}"
            assert operation["summary"], where
            success = operation["responses"].get("200") or operation["responses"]["204"]
            if "200" in operation["responses"]:
                assert all(c.get("example") for c in success["content"].values()), where
            if "requestBody" in operation:
                assert operation["requestBody"]["content"]["application/json"]["example"], where
            assert "application/problem+json" in operation["responses"]["default"]["content"], where
            assert "HTTPValidationError" not in str(operation), where


async def test_every_reference_of_the_document_leads_somewhere(client: httpx2.AsyncClient) -> None:
    described = await document(client)

    def check(node: Any) -> None:
        if isinstance(node, dict):
            if "$ref" in node:
                target: Any = described
                for step in node["$ref"].removeprefix("#/").split("/"):
                    target = target[step]
            for value in node.values():
                check(value)
        elif isinstance(node, list):
            for value in node:
                check(value)

    check(described)


async def test_the_document_says_which_operations_need_the_token(client: httpx2.AsyncClient) -> None:
    described = await document(client)
    assert described["components"]["securitySchemes"] == {"bearer": {"type": "http", "scheme": "bearer"}}
    assert described["info"]["version"] == "1.2.3"
    needed = {p: o.get("security") for p, methods in described["paths"].items() for o in methods.values()}
    assert {path for path, security in needed.items() if security is None} == {"/healthz", "/healthz/live"}
    assert all(security in (None, [{"bearer": []}]) for security in needed.values())


async def test_parameters_of_the_query_are_described(client: httpx2.AsyncClient) -> None:
    operation = (await document(client))["paths"]["/v1/calls"]["get"]
    known = {"session", "status", "name", "text", "since", "until", "order", "wait", "limit", "cursor"}
    assert {p["name"] for p in operation["parameters"]} == known


async def test_the_page_shows_the_document(client: httpx2.AsyncClient) -> None:
    page = await client.get("/docs", headers={"Authorization": ""})
    assert page.headers["content-type"].startswith("text/html")
    assert "openapi.json" in (await client.get("/docs/start.js")).text


async def test_the_page_is_made_of_nothing_that_is_not_served_here(client: httpx2.AsyncClient) -> None:
    """The token is typed into it."""
    page = await client.get("/docs", headers={"Authorization": ""})
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    parts = re.findall(r'(?:src|href)="(?!data:)([^"]*)"', page.text)
    assert len(parts) == 3
    for part in parts:
        answer = await client.get(f"/{part}", headers={"Authorization": ""})
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] in ("text/css", "text/javascript")
        assert len(answer.content) > 50
    assert "<script>" not in page.text


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/calls/", "/v1/sessions/a/b", "/redoc"])
async def test_an_unknown_path_is_a_problem(client: httpx2.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


async def test_a_wrong_method_is_told_which_ones_fit(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/sessions/default", json={})
    assert answer.status_code == 405
    assert answer.headers["allow"] == "DELETE, GET, PATCH"


@pytest.mark.parametrize(
    ("method", "path", "body", "store_method"),
    [
        ("GET", "/v1/calls", None, "calls"),
        ("GET", "/v1/calls/c", None, "find_call"),
        ("POST", "/v1/calls/c/result", {"result": 1}, "find_call"),
        ("POST", "/v1/calls/claim", {"session": "s", "names": ["f"]}, "claim"),
        ("POST", "/v1/calls/c/renew", {"worker": "w"}, "find_call"),
        ("POST", "/v1/calls/c/approve", {}, "find_call"),
        ("POST", "/v1/calls/c/deny", {}, "find_call"),
        ("GET", "/v1/sessions", None, "sessions"),
        ("GET", "/v1/sessions/s", None, "snapshot"),
        ("PATCH", "/v1/sessions/s", {}, "put_policy"),
        ("DELETE", "/v1/sessions/s", None, "delete_session"),
        ("PUT", "/v1/sessions/s/tools", {"tools": []}, "put_toolset"),
        ("GET", "/v1/turns", None, "turns"),
        ("GET", "/v1/events", None, "events"),
    ],
)
async def test_a_store_that_is_down_is_a_503_without_its_words(
    client: httpx2.AsyncClient,
    store: Store,
    metrics: Metrics,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    body: Any,
    store_method: str,
) -> None:
    async def down(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("redis://user:secret@host")

    monkeypatch.setattr(store, store_method, down)
    answer = await client.request(method, path, json=body)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "secret" not in answer.text
    assert b'toolgraft_errors_total{kind="store"} 1.0' in metrics.render()


async def test_a_mistake_of_ours_is_a_500_that_tells_nothing(
    client: httpx2.AsyncClient,
    store: Store,
    metrics: Metrics,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("inner words")

    monkeypatch.setattr(store, "find_call", broken)
    answer = await client.get("/v1/calls/c")
    assert (answer.status_code, answer.json()["status"]) == (500, 500)
    assert "inner words" not in answer.text
    assert "inner words" in caplog.text
    assert b'toolgraft_errors_total{kind="control"} 1.0' in metrics.render()


async def test_a_database_that_another_program_holds_for_good_is_a_503(
    settings: Settings, metrics: Metrics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "PATIENCE", 0.01)
    store = open_url(f"sqlite:///{tmp_path}/graft.db", ttl=60.0)
    await store.open()
    app = create_app(store=store, settings=settings, token=None, metrics=metrics, version="1")
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1:8741") as client:
        with contextlib.closing(sqlite3.connect(tmp_path / "graft.db", autocommit=True)) as other:
            other.execute("BEGIN IMMEDIATE")
            answer = await client.patch("/v1/sessions/default", json={"delivery": "loop"})
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert "nothing was changed" in answer.json()["detail"]
            assert (await client.get("/v1/sessions/default")).json()["delivery"] == "auto"
        assert (await client.patch("/v1/sessions/default", json={"delivery": "loop"})).status_code == 200
    await store.close()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StoreUnavailable("x"), "nothing was changed"),
        (OutcomeUnknown("x"), "the change may have been made"),
        (NotDurable("x"), "the change was made"),
    ],
)
async def test_a_failure_of_the_store_says_whether_something_was_changed(
    client: httpx2.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    async def down(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(store, "put_policy", down)
    answer = await client.patch("/v1/sessions/s", json={})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert words in answer.json()["detail"]
