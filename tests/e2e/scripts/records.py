"""A script that records the visible data in every hook, as JSON lines in the file that RECORDS names."""

import json
import os
from typing import Any

import mitmproxy.proxy.layers  # noqa: F401 - makes the hooks of flows known
from mitmproxy import flow, hooks, http
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

_LEFT_OUT = ("load", "configure", "running", "done", "add_log", "update")


class Records:
    def __init__(self) -> None:
        self._file = open(os.environ["RECORDS"], "w", buffering=1)
        for name in hooks.all_hooks:
            if name not in _LEFT_OUT:
                setattr(self, name, lambda subject, name=name: self._write(name, subject))

    def update(self, flows: list[flow.Flow]) -> None:
        for one in flows:
            self._write("update", one)

    def _write(self, hook: str, subject: object) -> None:
        line: dict[str, Any] = {"hook": hook}
        if isinstance(subject, http.HTTPFlow):
            request, server = subject.request, subject.server_conn
            line |= {
                "id": subject.id,
                "url": request.url,
                "pretty_url": request.pretty_url,
                "headers": [[name, value] for name, value in request.headers.items(multi=True)],
                "body": (request.content or b"").decode("utf-8", "replace"),
                "answer": repr(subject.response),
                "answer_headers": []
                if subject.response is None
                else [[*pair] for pair in subject.response.headers.items()],
                "server": server.address,
                "server_peer": server.peername,
                "server_via": server.via,
                "metadata": repr(subject.metadata),
                "error": str(subject.error),
            }
        elif isinstance(subject, ServerConnectionHookData):
            line |= {"server": subject.server.address, "server_peer": subject.server.peername}
        self._file.write(json.dumps(line) + "\n")


addons = [Records()]
