"""The traffic of clients over hours, correct and incorrect, in short visits, one per kind."""

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
from websockets import WebSocketException

from tests.e2e.proxies import DECLARATIONS, MODEL_PATH, Proxy, model, sse, text_of, user
from tests.lives import Live

Json = dict[str, Any]

KEY = {"x-goog-api-key": "a-secret-key"}
MODEL = "gemini-3-flash-preview"
SSE = "streamGenerateContent?alt=sse"
_ROUNDS = 'say Wait. call weather {"city": "Oslo"} and call local_add {"a": 1, "b": 2} then call hour {}'
_SESSIONS = 4
"""Sessions that chats share; each chat by hand has a separate one."""


class Traffic:
    """`proxy` has the tools of `tests.e2e.proxies.looping_proxy`, and an unreachable second upstream. `requests` and
    `visits` are counts."""

    def __init__(self, proxy: Proxy, seed: int) -> None:
        self.proxy = proxy
        self.random = random.Random(seed)
        self.requests = 0
        self.visits: Counter[str] = Counter()
        self._numbers = itertools.count()
        self._kinds: list[Callable[[httpx2.AsyncClient], Awaitable[None]]] = [
            self.by_hand,
            self.loop,
            self.loop_streamed,
            self.loop_array,
            self.completions,
            self.interactions,
            self.live,
            self.gemini_door,
            self.responses_door,
            self.control,
            self.hang_up,
            self.hang_up_early,
            self.leave_events,
            self.leave_live,
            self.failing_tools,
            self.refused,
            self.unreachable,
        ]

    async def visit(self, count: int, at_once: int) -> None:
        """Make `count` visits, `at_once` of them concurrently, by clients that leave afterwards."""
        async with httpx2.AsyncClient(timeout=30, limits=httpx2.Limits(max_connections=None)) as client:
            kinds = iter(self.random.choices(self._kinds, k=count))

            async def visitor() -> None:
                for kind in kinds:
                    self.visits[kind.__name__] += 1
                    await kind(client)

            async with asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(visitor())

    # --- one request ------------------------------------------------------------------------------------------

    async def send(
        self, client: httpx2.AsyncClient, method: str, url: str, status: int = 200, **more: Any
    ) -> httpx2.Response:
        self.requests += 1
        answer = await client.request(method, url, **more)
        assert answer.status_code == status, (method, url, answer.status_code, answer.text[:500])
        return answer

    async def api(self, client: httpx2.AsyncClient, method: str, path: str, status: int = 200, **more: Any) -> Any:
        control = self.proxy.control
        headers = {"authorization": f"Bearer {control.token}"} | more.pop("headers", {})
        answer = await self.send(client, method, control.url + path, status, headers=headers, **more)
        return answer

    async def ask(self, client: httpx2.AsyncClient, session: str, contents: list[Json], method: str) -> str:
        url = f"{self.proxy.url}/@{session}{MODEL_PATH}:{method}"
        answer = await self.send(client, "POST", url, json={"contents": contents}, headers=KEY)
        return text_of(sse(answer.text) if method == SSE else answer.json())

    def session(self) -> str:
        return f"shared{self.random.randrange(_SESSIONS)}"

    # --- what goes well ---------------------------------------------------------------------------------------

    async def by_hand(self, client: httpx2.AsyncClient) -> None:
        """A placeholder, a result by hand, and the request with that result; then the session is deleted."""
        session = f"hand{next(self._numbers)}"
        method = self.random.choice(["generateContent", SSE])
        declared = {"tools": [{"functionDeclarations": DECLARATIONS}]}
        await self.api(client, "PUT", f"/v1/sessions/{session}/tools", json=declared)
        await self.api(client, "PATCH", f"/v1/sessions/{session}", json={"delivery": "placeholder"})
        question = user('call get_weather {"city": "Oslo"}')
        placeholder = await self.ask(client, session, [question], method)
        calls = (await self.api(client, "GET", "/v1/calls", params={"session": session})).json()["items"]
        result = {"result": {"celsius": 4}}
        await self.api(client, "POST", f"/v1/calls/{calls[0]['call_id']}/result", json=result)
        reply = await self.ask(client, session, [question, model(placeholder), user("repeat the results")], method)
        assert reply == 'get_weather returned {"celsius": 4}.', reply
        await self.api(client, "DELETE", f"/v1/sessions/{session}", 204)

    async def loop(self, client: httpx2.AsyncClient, method: str = "generateContent") -> None:
        session, question = self.session(), user(f"{_ROUNDS} # {next(self._numbers)}")
        reply = await self.ask(client, session, [question], method)
        assert "Wait." in reply, reply
        reply = await self.ask(client, session, [question, model(reply), user("repeat the results")], method)
        assert "hour returned" in reply, reply

    async def loop_streamed(self, client: httpx2.AsyncClient) -> None:
        await self.loop(client, SSE)

    async def loop_array(self, client: httpx2.AsyncClient) -> None:
        await self.loop(client, "streamGenerateContent")

    async def completions(self, client: httpx2.AsyncClient) -> None:
        url = f"{self.proxy.url}/@{self.session()}/v1beta/openai/chat/completions"
        asked = {"model": MODEL, "messages": [{"role": "user", "content": _ROUNDS}]}
        headers = {"authorization": "Bearer a-secret-key"}
        for stream in (False, True):
            answer = await self.send(client, "POST", url, json=asked | {"stream": stream}, headers=headers)
            assert "hour" in answer.text

    async def interactions(self, client: httpx2.AsyncClient) -> None:
        url = f"{self.proxy.url}/@{self.session()}/v1beta/interactions"
        first = (await self.send(client, "POST", url, json={"model": MODEL, "input": _ROUNDS}, headers=KEY)).json()
        more = {"model": MODEL, "input": "What is 1+1?", "previous_interaction_id": first["id"], "stream": True}
        await self.send(client, "POST", url, json=more, headers=KEY)

    async def live(self, client: httpx2.AsyncClient) -> None:
        self.requests += 1
        async with Live.open(f"{self.proxy.url}/@{self.session()}") as live:
            for words, part in ((_ROUNDS, "hour returned"), ("What is 1+1?", "2")):
                await live.say(words)
                answer = await live.turn()
                assert part in answer, answer

    async def gemini_door(self, client: httpx2.AsyncClient) -> None:
        await self._converse(client, "/v1/gemini")

    async def responses_door(self, client: httpx2.AsyncClient) -> None:
        await self._converse(client, "/v1/responses")

    async def _converse(self, client: httpx2.AsyncClient, path: str) -> None:
        asked = {"model": MODEL, "conversation": f"c{next(self._numbers)}"}
        headers = {"x-graft-session": self.session()} | KEY
        for words, stream in ((_ROUNDS, False), (_ROUNDS, True), ("What is 1+1?", False)):
            more = asked | {"input": words, "stream": stream}
            answer = await self.api(client, "POST", path, json=more, headers=headers)
            assert "hour returned" in answer.text or words != _ROUNDS, answer.text

    async def control(self, client: httpx2.AsyncClient) -> None:
        session = self.session()
        for path in ("/v1/calls", "/v1/turns"):
            await self.api(client, "GET", path, params={"session": session, "limit": 20})
        for path in ("/v1/sessions", "/healthz", f"/v1/sessions/{session}/tools"):
            await self.api(client, "GET", path)
        await self.api(client, "PATCH", f"/v1/sessions/{session}", json={"max_rounds": 10})

    # --- what does not ----------------------------------------------------------------------------------------

    async def hang_up(self, client: httpx2.AsyncClient) -> None:
        """Hang up in the middle of a stream, while a tool runs."""
        asked = {"contents": [user('say Wait. call pause {"seconds": 0.05, "label": "x"} then call hour {}')]}
        url = f"{self.proxy.url}/@{self.session()}{MODEL_PATH}:{SSE}"
        self.requests += 1
        async with client.stream("POST", url, json=asked, headers=KEY) as answer:
            assert answer.status_code == 200
            await anext(answer.aiter_bytes())

    async def hang_up_early(self, client: httpx2.AsyncClient) -> None:
        """Hang up before the answer begins."""
        asked = {"contents": [user("call endless {}")]}
        url = f"{self.proxy.url}/@{self.session()}{MODEL_PATH}:generateContent"
        self.requests += 1
        with contextlib.suppress(httpx2.TimeoutException):
            await client.post(url, json=asked, headers=KEY, timeout=0.05)

    async def leave_events(self, client: httpx2.AsyncClient) -> None:
        """Follow the events of a session, and leave."""
        headers = {"authorization": f"Bearer {self.proxy.control.token}"}
        self.requests += 1
        url = f"{self.proxy.control.url}/v1/events"
        async with client.stream("GET", url, params={"session": self.session()}, headers=headers) as answer:
            assert answer.status_code == 200

    async def leave_live(self, client: httpx2.AsyncClient) -> None:
        """Leave a Live connection while a tool runs."""
        self.requests += 1
        with contextlib.suppress(WebSocketException):
            async with Live.open(f"{self.proxy.url}/@{self.session()}") as live:
                await live.say('say Wait. call pause {"seconds": 0.05, "label": "x"} then call hour {}')
                await live.read()
                live.leave()

    async def failing_tools(self, client: httpx2.AsyncClient) -> None:
        words = 'call broken {"message": "no"} and call endless {} and call weather {"town": 1} then call hour {}'
        reply = await self.ask(client, self.session(), [user(words)], self.random.choice(["generateContent", SSE]))
        assert "hour returned" in reply, reply

    async def refused(self, client: httpx2.AsyncClient) -> None:
        """Requests that the upstream and the control API refuse."""
        url = f"{self.proxy.url}/@{self.session()}/v1beta/models"
        await self.send(client, "POST", f"{url}/no-model:generateContent", 404, json={"contents": []}, headers=KEY)
        await self.send(client, "POST", f"{url}/{MODEL}:generateContent", 400, content=b"{", headers=KEY)
        await self.send(client, "GET", f"{self.proxy.control.url}/v1/calls", 401)
        await self.api(client, "GET", "/v1/calls/none", 404)
        await self.api(client, "PUT", "/v1/sessions/refused/tools", 422, json={"tools": [{"name": "a b"}]})
        await self.api(client, "POST", "/v1/responses", 400, json={"model": MODEL, "input": 1}, headers=KEY)

    async def unreachable(self, client: httpx2.AsyncClient) -> None:
        """A request to the unreachable second upstream."""
        asked = {"contents": [user("call hour {}")]}
        for method in ("generateContent", SSE):
            url = f"{self.proxy.urls[1]}{MODEL_PATH}:{method}"
            self.requests += 1
            answer = await client.post(url, json=asked, headers=KEY)
            assert answer.status_code in (502, 503), answer.text
