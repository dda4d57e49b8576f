"""Sends the control API and the front doors requests that their OpenAPI document allows, and others, and compares the
answers with the document."""

import asyncio
import gc
import random
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

import hypothesis
import schemathesis
from hypothesis import strategies as st
from requests import PreparedRequest, Request
from schemathesis import Case, GenerationMode, Response
from schemathesis.checks import CheckFunction
from schemathesis.specs.openapi import checks

from addon.core.framing.documents import Document, encode
from tests.fuzz.findings import FREEZE, watched
from tests.fuzz.mutations import altered, mutated
from tests.fuzz.world import World

_HOST = "http://127.0.0.1:8741"
_PATIENCE = 0.05
"""Seconds after which the client hangs up: otherwise streams of events do not end, and long polls end late."""
_CHECKS: list[CheckFunction] = [
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
_ANYWHERE = {400, 401, 403, 404, 405, 413, 415, 422}
"""Refusals of any operation, which the document has as `default`."""
_AT_DOORS = {409, 429, 502}
"""The same for the front doors, which the document describes briefly."""
_CHOOSY = {"x-graft-session", "If-Match", "If-None-Match"}
"""Headers with which a request is refused early if their values are odd."""
_QUIET = hypothesis.settings(
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
    print_blob=False,
)


class Exchange:
    """One request to the application, with a client that hangs up if the answer takes long. `took`: seconds of this
    thread's processor time."""

    def __init__(self, request: PreparedRequest) -> None:
        self.request = request
        body: Any = request.body or b""
        self.body: bytes = body.encode() if isinstance(body, str) else body
        self.status = 0
        self.headers: dict[str, list[str]] = {}
        self.content = b""
        self.hung_up = False
        self.took = 0.0

    async def run(self, app: Any) -> None:
        path, _, query = (self.request.path_url or "/").partition("?")
        given = {"Host": _HOST.removeprefix("http://"), **self.request.headers}
        if self.body:
            given["Content-Length"] = str(len(self.body))
        scope = {
            "type": "http",
            "method": self.request.method,
            "path": unquote(path),
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.lower().encode("latin-1"), _bytes(value)) for name, value in given.items()],
            "client": ("127.0.0.1", 50000),
        }
        left, unsent = asyncio.Event(), [self.body]

        async def receive() -> Document:
            if unsent:
                return {"type": "http.request", "body": unsent.pop(), "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                for name, value in message["headers"]:
                    self.headers.setdefault(name.decode(), []).append(value.decode("latin-1"))
            else:
                self.content += message.get("body", b"")

        def hang_up() -> None:
            self.hung_up = True
            left.set()

        timer = asyncio.get_running_loop().call_later(_PATIENCE, hang_up)
        gc.disable()  # a collection would go through the test's own objects
        begun = time.thread_time()
        try:
            async with asyncio.timeout(10):
                await app(scope, receive, send)
        finally:
            self.took = time.thread_time() - begun
            gc.enable()
            timer.cancel()

    def __str__(self) -> str:
        return f"{self.request.method} {self.request.path_url[:200]} {self.body[:300]!r}"

    def response(self) -> Response:
        return Response(self.status, self.headers, self.content, self.request, 0, False, encoding="utf-8")


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("latin-1", "replace")


class Control:
    """The application over a store in memory and over one in SQLite. `timed`: slow answers are findings."""

    def __init__(self, folder: Path, *, timed: bool) -> None:
        self._worlds = [World("memory://", folder / "memory"), World(f"sqlite:///{folder}/store.db", folder / "sqlite")]
        self._timed = timed
        self.findings: list[str] = []
        self.done = 0

    async def open(self) -> None:
        for world in self._worlds:
            await world.open()
        document = self._worlds[0].document
        self._described = document["paths"]
        found: Any = schemathesis.openapi.from_dict(document).get_all_operations()
        self._operations = [one.ok() for one in found]

    async def close(self) -> None:
        for world in self._worlds:
            await world.close()

    async def seed(self) -> None:
        for world in self._worlds:
            await world.seed()

    def cases(self) -> st.SearchStrategy[Case[Any]]:
        """Requests that fit the document, and others."""
        found = []
        for operation in self._operations:
            found.append(operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
            if self._of(operation).keys() & {"parameters", "requestBody"}:
                found.append(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
        return st.sampled_from(found).flatmap(lambda one: one)

    async def run(self, case: Case[Any], rng: random.Random) -> None:
        """Send one request, and note the faults of its answer."""
        world, described = rng.choice(self._worlds), self._of(case.operation)
        exchange = Exchange(_request(case, described, world, rng))
        await exchange.run(world.app)
        self.done += 1
        if self._timed and exchange.took > FREEZE:
            self.findings.append(f"{exchange}: took {exchange.took:.2f} s")
        self.findings += (f"{exchange}: {exchange.status}: {problem}" for problem in _wrong(exchange, case, described))

    def _of(self, operation: Any) -> Document:
        described: Document = self._described[operation.path][operation.method]
        return described


def _request(case: Case[Any], described: Document, world: World, rng: random.Random) -> PreparedRequest:
    """The case's request, mostly for an existing object and with sufficient rights."""
    for name in case.path_parameters:
        if rng.random() < 0.8:
            case.path_parameters[name] = rng.choice(world.ids[name])
    for name in case.headers.keys() & _CHOOSY:
        if rng.random() < 0.8:
            del case.headers[name]
    given = case.as_transport_kwargs(base_url=_HOST)
    content = described.get("requestBody", {}).get("content", {}).get("application/json", {})
    if "example" in content and rng.random() < 0.6:
        given.pop("json", None)
        body = encode(altered(content["example"], rng))
        given["data"] = mutated(body, rng) if rng.random() < 0.1 else body
    given["headers"].pop("Authorization", None)
    if token := rng.choice(world.tokens):
        given["headers"]["Authorization"] = f"Bearer {token}"
    return Request(**given).prepare()


def _wrong(exchange: Exchange, case: Case[Any], described: Document) -> Iterator[str]:
    """The differences between the answer and the document."""
    if exchange.hung_up and exchange.status in (0, 499):
        return
    status = str(exchange.status)
    anywhere = _ANYWHERE | (_AT_DOORS if "front doors" in described["tags"] else set())
    if status not in described["responses"] and exchange.status not in anywhere:
        yield f"not described: {exchange.content[:200]!r}"
    if exchange.status >= 500 and exchange.status != 502:
        yield f"an error of the proxy's own: {exchange.content[:200]!r}"
    try:
        case.validate_response(exchange.response(), checks=_CHECKS)
    except Exception as error:
        yield str(error)


def fuzzed_control(seed: int, seconds: float = 0, tries: int = 0) -> tuple[int, list[str]]:
    """The number of sent requests, and the findings: for `seconds`, or `tries` requests in any time."""
    ends, number = time.monotonic() + seconds, 0
    with TemporaryDirectory() as folder, asyncio.Runner() as runner:
        target = Control(Path(folder), timed=not tries)
        runner.run(target.open())
        cases = target.cases()
        with watched() as errors:
            while len(target.findings) < 20 and (target.done < tries if tries else time.monotonic() < ends):
                number += 1
                runner.run(target.seed())

                @hypothesis.seed(f"{seed} {number}")
                @hypothesis.settings(_QUIET, max_examples=tries or 100)
                @hypothesis.given(cases, st.integers(0, 2**32))
                def round_of_tries(case: Case[Any], choices: int) -> None:
                    runner.run(target.run(case, random.Random(choices)))

                round_of_tries()
                target.findings += errors.taken()
        runner.run(target.close())
    return target.done, target.findings
