import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from addon.control.app import ControlApp, create_app
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from store.base import Store

PATH = "/v1/sessions/default"
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("method", "headers", "content", "status", "field"),
    [
        ("GET", {"Host": "evil.example"}, None, 403, "Host"),
        ("GET", {"Host": "evil.example:8741"}, None, 403, "Host"),
        ("GET", {"Host": ""}, None, 403, "Host"),
        ("GET", {"Origin": "https://evil.example"}, None, 403, "Origin"),
        ("GET", {"Origin": "null"}, None, 403, "Origin"),
        ("GET", {"Origin": "http://localhost:3000"}, None, 403, "Origin"),
        ("GET", {"Origin": "http://127.0.0.1:5173", "Sec-Fetch-Site": "same-site"}, None, 403, "Origin"),
        ("GET", {"Sec-Fetch-Site": "cross-site"}, None, 403, "Sec-Fetch-Site"),
        ("GET", {"Sec-Fetch-Site": "same-site"}, None, 403, "Sec-Fetch-Site"),
        ("GET", {"Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"}, None, 403, "Origin"),
        ("GET", {"Authorization": ""}, None, 401, None),
        ("GET", {"Authorization": "Bearer wrong"}, None, 401, None),
        ("GET", {"Authorization": "Basic a-token-for-tests"}, None, 401, None),
        ("GET", {"Authorization": "a-token-for-tests"}, None, 401, None),
        ("GET", {"Authorization": "Bearer a-token-for-tests2"}, None, 401, None),
        ("PATCH", {"Content-Type": "text/plain"}, b"{}", 415, "Content-Type"),
        ("PATCH", {"Content-Type": "application/x-www-form-urlencoded"}, b"a=1", 415, "Content-Type"),
        ("PATCH", {}, b"{}", 415, "Content-Type"),
        ("PATCH", JSON, b'"' + b"x" * 2048 + b'"', 413, None),
        ("POST", {}, None, 405, None),
        ("PATCH", JSON, b"{", 400, None),
        ("PATCH", JSON, b'{"delivery": NaN}', 400, None),
        ("PATCH", JSON, b"", 400, None),
    ],
)
async def test_forbidden_requests_are_refused_with_a_problem(
    client: httpx2.AsyncClient,
    method: str,
    headers: dict[str, str],
    content: bytes | None,
    status: int,
    field: str | None,
) -> None:
    answer = await client.request(method, PATH, headers=headers, content=content)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert problem["detail"]
    assert problem["title"]
    assert problem["type"] == "about:blank"
    assert problem.get("field") == field
    assert "a-token-for-tests" not in answer.text


async def test_a_refusal_for_want_of_a_token_says_how_to_give_one(client: httpx2.AsyncClient) -> None:
    answer = await client.get(PATH, headers={"Authorization": ""})
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "localhost:8741"},
        {"Host": "[::1]:8741"},
        {"Host": "192.168.1.7"},
        {"Host": "GRAFT.example:8741"},
        {"Host": "localhost:8741", "Origin": "http://localhost:8741", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "none"},
        {"Authorization": "bearer a-token-for-tests"},
    ],
)
async def test_permitted_requests_come_in(client: httpx2.AsyncClient, headers: dict[str, str]) -> None:
    assert (await client.get(PATH, headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/healthz", 200),
        ("/docs", 200),
        ("/openapi.json", 200),
        ("/metrics", 401),
        ("/v1/calls", 401),
        ("/v1/events", 401),
        ("/nothing", 401),
    ],
)
async def test_only_what_is_no_secret_is_open_without_a_token(app: ControlApp, path: str, status: int) -> None:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1") as client:
        assert (await client.get(path)).status_code == status
        assert (await client.get(path, headers={"Host": "evil.example"})).status_code == 403


async def test_without_a_token_set_nobody_is_asked_for_one(store: Store, settings: Settings) -> None:
    app = create_app(store=store, settings=settings, token=None, metrics=Metrics(), version="1")
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1") as client:
        assert (await client.get("/v1/calls")).status_code == 200
        assert (await client.get("/v1/calls", headers={"Origin": "http://localhost:3000"})).status_code == 403
        assert (await client.get("/v1/calls", headers={"Host": "evil.example"})).status_code == 403


async def test_a_body_of_unknown_length_is_stopped_where_it_gets_too_large(client: httpx2.AsyncClient) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 1024
            yield b" " * 1024

    answer = await client.patch(PATH, headers=JSON, content=endless())
    assert answer.status_code == 413
    assert answer.json()["status"] == 413
    assert sent <= 4096


async def test_a_body_that_just_fits_is_taken(client: httpx2.AsyncClient) -> None:
    body = b'{"delivery": "loop"}'.ljust(2048)
    assert (await client.patch(PATH, headers=JSON, content=body)).status_code == 200


async def test_pages_that_may_use_the_api_are_told_so(client: httpx2.AsyncClient) -> None:
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "PATCH", "Authorization": ""}
    preflight = await client.options(PATH, headers=asked)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    assert "PATCH" in preflight.headers["access-control-allow-methods"]
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
    answer = await client.get(PATH, headers={"Origin": "https://app.example"})
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    refused = await client.options(PATH, headers=asked | {"Origin": "https://evil.example"})
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers


async def test_a_refusal_is_readable_for_a_page_that_may_use_the_api(client: httpx2.AsyncClient) -> None:
    answer = await client.get(PATH, headers={"Origin": "https://app.example", "Authorization": ""})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == "https://app.example"


async def test_nothing_but_http_and_websockets_is_spoken(app: ControlApp) -> None:
    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    with pytest.raises(ValueError, match="lifespan"):
        await app({"type": "lifespan", "headers": []}, never, never)


async def test_names_and_origins_that_are_added_while_it_runs_count_from_the_next_request_on(
    app: ControlApp, client: httpx2.AsyncClient, settings: Settings
) -> None:
    headers = {"Host": "new.example", "Origin": "https://new.example"}
    assert (await client.get(PATH, headers=headers)).status_code == 403
    app.change(settings.model_copy(update={"allow_hosts": ("new.example",), "allow_origins": ("https://new.example",)}))
    assert (await client.get(PATH, headers=headers)).status_code == 200
