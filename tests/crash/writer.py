"""Writes to the control API: toolsets and policies of separate sessions."""

import threading
from typing import Any

import httpx2

from tests.crash.actors import Actor
from tests.crash.rig import Rig

Json = dict[str, Any]


class Writer(Actor):
    def __init__(self, rig: Rig) -> None:
        super().__init__(rig, "writer")
        self.sessions = [rig.name("w") for _ in range(2)]
        self.count = 0
        self.acknowledged: dict[tuple[str, str], int] = {}
        self.begun: dict[tuple[str, str], int] = {}
        """The newest value that was sent, which may not be stored."""

    def play(self, stop: threading.Event) -> None:
        while not stop.is_set():
            what = (self.random.choice(self.sessions), self.random.choice(("tools", "policy")))
            self.count += 1
            self.begun[what] = self.count
            try:
                self._write(*what, self.count)
            except httpx2.HTTPError:
                return
            self.acknowledged[what] = self.count
            self.note(f"{what[1]} acknowledged")
            self.rig.trace.tick()
            stop.wait(0.02)

    def _write(self, session: str, kind: str, value: int) -> None:
        if kind == "tools":
            self.control.session(session).tools([{"name": "counted", "description": str(value)}])
        else:
            self.control.session(session).policy(pending_timeout=value % 3600)

    def recover(self) -> None:
        for (session, kind), value in self.acknowledged.items():
            found = self._read(session, kind)
            if found is None:
                self.broken("lost", f"{kind} of {session}: {value} was acknowledged")
                continue
            fits = {value, self.begun[session, kind]}
            if found not in (fits if kind == "tools" else {one % 3600 for one in fits}):
                self.broken("lost", f"{kind} of {session}: {value} was acknowledged, and it is {found}")
            self.acknowledged[session, kind] = self.begun[session, kind] = found

    def _read(self, session: str, kind: str) -> int | None:
        path = f"/v1/sessions/{session}"
        answer = self.control.http.get(f"{path}/tools" if kind == "tools" else path)
        if answer.status_code == 404:
            return None
        found = answer.json()
        if kind == "tools":
            return int(found["tools"][0]["functionDeclarations"][0]["description"])
        return int(found["pending_timeout"])
