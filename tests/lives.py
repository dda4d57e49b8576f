"""A minimal client of the Live API, for the soak and crash tests."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect

Json = dict[str, Any]

MODEL = "models/gemini-live-2.5-flash-preview"
PATH = "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent"


class Live:
    """An open connection after its setup. Raises websockets.WebSocketException if the connection breaks."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Self]:
        """`url`: of a reverse proxy, with the session. Without compression, because mitmproxy leaves compressors of
        250 KB each to the garbage collector, which would look like a leak. Callers bound the time."""
        address = f"{url.replace('http', 'ws', 1)}{PATH}?key=a-secret-key"
        async with connect(address, proxy=None, compression=None, open_timeout=None) as connection:
            live = cls(connection)
            await live.send({"setup": {"model": MODEL}})
            assert "setupComplete" in await live.read()
            yield live

    async def send(self, message: Json) -> None:
        await self.connection.send(json.dumps(message))

    async def read(self) -> Json:
        message: Json = json.loads(await self.connection.recv())
        return message

    async def say(self, words: str) -> None:
        turn = {"role": "user", "parts": [{"text": words}]}
        await self.send({"clientContent": {"turns": [turn], "turnComplete": True}})

    async def turn(self) -> str:
        """The text of the model's next turn. No call may come before its end."""
        text = ""
        while True:
            message = await self.read()
            assert not {"toolCall", "toolCallCancellation"} & set(message), message
            content = message.get("serverContent", {})
            text += "".join(part.get("text", "") for part in content.get("modelTurn", {}).get("parts", []))
            if content.get("turnComplete"):
                return text

    def leave(self) -> None:
        """Disconnect without closing."""
        self.connection.transport.abort()
