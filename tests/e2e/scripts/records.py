"""A script that writes down all that it can see, in every hook: a line of JSON each, to the file that RECORDS names."""

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
                setattr(self, name, lambda seen, name=name: self._write(name, seen))

    def update(self, flows: list[flow.Flow]) -> None:
        for one in flows:
            self._write("update", one)

    def _write(self, hook: str, seen: object) -> None:
        line: dict[str, Any] = {"hook": hook}
        if isinstance(seen, http.HTTPFlow):
            request, server = seen.request, seen.server_conn
            line |= {
                "id": seen.id,
                "url": request.url,
                "pretty_url": request.pretty_url,
                "headers": [[name, value] for name, value in request.headers.items(multi=True)],
                "body": (request.content or b"").decode("utf-8", "replace"),
                "answer": repr(seen.response),
                "answer_headers": [] if seen.response is None else [[*pair] for pair in seen.response.headers.items()],
                "server": server.address,
                "server_peer": server.peername,
                "server_via": server.via,
                "metadata": repr(seen.metadata),
                "error": str(seen.error),
            }
        elif isinstance(seen, ServerConnectionHookData):
            line |= {"server": seen.server.address, "server_peer": seen.server.peername}
        self._file.write(json.dumps(line) + "\n")


addons = [Records()]
