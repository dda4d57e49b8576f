"""Live sessions of the published clients, unmodified, each in a separate process that is driven line by line."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.e2e.chats import CLIENTS, Client, installed
from tests.e2e.processes import until
from tests.e2e.proxies import Proxy, Session

Json = dict[str, Any]

MODEL = "gemini-live-2.5-flash-preview"
KEY = "a-secret-key"


class LiveChat(Client):
    """`got`: the service's messages that the client has received."""

    def __init__(self, program: list[str | Path], home: Path, env: Mapping[str, str], **options: Any) -> None:
        super().__init__(program, home, env, {"model": MODEL, "key": KEY, **options})
        self._read = 0
        self.wait("setupComplete")

    @property
    def got(self) -> list[Json]:
        lines = [json.loads(line) for line in list(self.process.lines) if line.startswith("{")]
        return [line["got"] for line in lines if "got" in line]

    def send(self, **given: Any) -> None:
        self.process.send(json.dumps(given))

    def wait(self, member: str) -> Json:
        """The next message with this member, also inside serverContent. Skips the messages before it."""

        def look() -> Json | None:
            for at, message in enumerate(self.got[self._read :], self._read + 1):
                if member in message or member in message.get("serverContent", {}):
                    self._read = at
                    return message
            return None

        found = until(look, f"a message with {member}, in {self.process.log}")
        assert found is not None
        return found

    def turn(self) -> str:
        """The whole text of the next turn."""
        begin = self._read
        self.wait("turnComplete")
        return "".join(text_of(message) for message in self.got[begin : self._read])

    def say(self, words: str) -> str:
        self.send(say=words)
        return self.turn()

    def speak(self, *words: str) -> None:
        """Send each as a frame of audio."""
        for one in words:
            self.send(speak=one)


def text_of(message: Json) -> str:
    parts = message.get("serverContent", {}).get("modelTurn", {}).get("parts", [])
    return "".join(part.get("text", "") for part in parts)


def python(proxy: Proxy, session: Session, home: Path, **options: Any) -> LiveChat:
    """google-genai, through CONNECT: for Live it only supports wss."""
    env = {"HTTPS_PROXY": proxy.user(session.name), "SSL_CERT_FILE": str(proxy.ca)}
    return LiveChat([sys.executable, CLIENTS / "live.py"], home, env, **options)


def node(proxy: Proxy, session: Session, home: Path, **options: Any) -> LiveChat:
    """@google/genai, through the reverse proxy by plain ws."""
    base = f"{proxy.url}/@{session.name}"
    env = {"GENAI_JS": str(installed())}
    return LiveChat(["node", CLIENTS / "live.mjs"], home, env, base_url=base, **options)
