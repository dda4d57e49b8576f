"""A control API with its front doors, in process, over a store with records."""

from pathlib import Path

import httpx2

from addon.control.app import ControlApp, create_app
from addon.core.framing.documents import Document, encode
from addon.core.framing.streams import sse_event
from addon.gateway.engine import Caller
from addon.gateway.mount import gateway_routes
from addon.graft.grafter import Grafter
from addon.loop.executors import Executors
from addon.loop.tool_trials import ToolTrials
from addon.loop.upstream import Upstream
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from addon.web.access import Right
from store.factory import open_url
from store.models import Call, Step, Turn
from tests.loop.conftest import Tools, Watcher, Wire

OWNER = "a-token-for-tests"
SESSIONS = ["default", "other"]
_TOOLS: list[Document] = [
    {"name": "get_weather", "executor": {"type": "worker"}, "parameters": {"type": "object"}},
    {"name": "by_hand", "approval": True},
    {"name": "at_home", "executor": {"type": "http", "url": "http://127.0.0.1:9/x", "headers": {"X-Key": "secret"}}},
]


async def _gemini(request: httpx2.Request) -> httpx2.Response:
    """Answers every request, sometimes with a call; the model `bad` with an error."""
    if b"bad" in request.content:
        body: Document = {"error": {"code": 429, "message": "of the upstream", "status": "RESOURCE_EXHAUSTED"}}
        return httpx2.Response(429, json=body)
    part = {"functionCall": {"name": "own", "args": {}}} if len(request.content) % 3 == 0 else {"text": "yes"}
    body = {"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}]}
    if b"alt=sse" in request.url.query:
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, content=sse_event(encode(body)))
    return httpx2.Response(200, json=body)


class World:
    """`ids`: existing names for the parameters of paths. `tokens`: for callers; "" is none."""

    def __init__(self, url: str, state: Path) -> None:
        self.store = open_url(url, ttl=1e6)
        self.settings = Settings(state=state)
        metrics, self._transport = Metrics(), Wire(_gemini)
        self._executors = Executors(
            self.store,
            Tools(),
            httpx2.AsyncClient(transport=self._transport),
            proxy_id="this",
            count=metrics.count_ended,
        )
        grafter = Grafter(self.store, self.settings, metrics, owners=self._executors)
        extra_routes = gateway_routes(
            store=self.store,
            grafter=lambda: grafter,
            executors=self._executors,
            upstreams=self,
            environ={"GEMINI_API_KEY": "a-key-of-the-proxy-s"},
        )
        self.app: ControlApp = create_app(
            store=self.store,
            settings=self.settings,
            token=OWNER,
            metrics=metrics,
            version="1",
            try_tool=ToolTrials(self._executors, grafter.session_config).begin,
            extra_routes=extra_routes,
        )
        self.ids: dict[str, list[str]] = {}
        self.tokens: list[str] = []
        self._seeded = 0

    @property
    def document(self) -> Document:
        """The application's OpenAPI document."""
        return self.app.fastapi.openapi()

    def upstream(self, caller: Caller, sent: bytes, *, streams: bool) -> Upstream:
        return Upstream(lambda _: self._transport, Watcher())

    async def open(self) -> None:
        await self.store.open()
        await self.store.hold("this", 3600)
        await self._executors.open()

    async def close(self) -> None:
        self.app.stop()
        await self._executors.close()
        await self.store.close()

    async def seed(self) -> None:
        """Replace all records: calls in every state, tools, policies, responses and tokens."""
        self._seeded += 1
        for found in (await self.store.sessions(limit=1000)).items:
            await self.store.delete_session(found.name)
        self.ids = {
            "name": ["get_weather", "by_hand", "no_such_tool"],
            "session": SESSIONS,
            "call_id": [],
            "turn_id": [],
            "response_id": [],
            "token_id": [],
            "conversation_id": [],
            "item_id": [],
            "request_id": ["req_of_nobody"],
            "server": ["files"],
            "model": ["gemini-3-flash", "no-model"],
        }
        self.tokens = [*[OWNER] * 15, "", "wrong"]
        for old in self.app.api.tokens.listed():
            self.app.api.tokens.revoke(old.id)
        scopes: tuple[Right, ...] = ("ask", "read", "worker", "approve")
        for scope in scopes:
            made, token = self.app.api.tokens.make([scope], SESSIONS[0], "for tests")
            self.tokens.append(token)
            self.ids["token_id"].append(made.id)
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(self.app),
            base_url="http://127.0.0.1:8741",
            headers={"Authorization": f"Bearer {OWNER}"},
        ) as client:
            for session in SESSIONS:
                await self._calls(session)
                (await client.put(f"/v1/sessions/{session}/tools", json={"tools": _TOOLS})).raise_for_status()
                asked = {"model": "gemini-3-flash", "input": "hi", "conversation": f"trip-{self._seeded}"}
                headers = {"x-graft-session": session}
                answer = await client.post("/v1/responses", json=asked, headers=headers)
                answer.raise_for_status()
                self.ids["response_id"].append(answer.json()["id"])
                added = {"items": [{"role": "user", "content": "and in Oslo"}]}
                path = f"/v1/conversations/{asked['conversation']}/items"
                items = (await client.post(path, json=added, headers=headers)).raise_for_status().json()["data"]
                self.ids["conversation_id"].append(str(asked["conversation"]))
                self.ids["item_id"].append(items[0]["id"])

    async def _calls(self, session: str) -> None:
        states: tuple[Document, ...] = (
            {"name": "get_weather", "owner": "workers", "released": True},
            {"name": "get_weather", "owner": "workers", "released": True, "status": "running", "worker": "w"},
            {"name": "by_hand", "owner": "hand", "approval": "waiting"},
            {"name": "by_hand", "owner": "hand", "status": "done", "result": {"a": 1}},
            {"name": "at_home", "owner": "loop", "status": "failed", "error": "no"},
        )
        for number, state in enumerate(states):
            call_id, now = f"call_{session}_{self._seeded}_{number}", self.store.clock()
            made = {"call_id": call_id, "session": session, "args": {"a": 1}, "turn_id": f"turn_{call_id}"}
            call = Call.model_validate({**made, **state, "created_at": now, "updated_at": now})
            content = {"role": "model", "parts": [{"functionCall": {"name": call.name, "args": call.args}}]}
            step = Step.model_validate({"content": content, "slots": [{"name": call.name, "call_id": call_id}]})
            turn = Turn(
                turn_id=call.turn_id,
                session=session,
                visible=[{"text": "hi"}],
                steps=[step],
                created_at=now,
            )
            await self.store.save_turn(turn, [call])
            self.ids["call_id"].append(call_id)
            self.ids["turn_id"].append(turn.turn_id)
