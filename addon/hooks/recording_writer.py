"""`graft_record`: writes exchanges with Gemini to a flow file that mitmproxy reads, without secrets.

A recorded flow is the exchange with the upstream, so that `--server-replay` behind the addon finds it. The client's
body and its session are in the flow's metadata under `graft`. Each round of a tool loop is a flow; only the first has a
body of the client. A Live connection is one flow with mitmproxy's frames; dropped and injected frames are marked.
"""

import base64
import logging
import os
from typing import IO

from mitmproxy import http, io

from addon.core.history.keys import asker_digest
from addon.hooks.delivered import answered_here
from addon.hooks.grafting import Grafting
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.messages import asker_in
from addon.hooks.routing import Routing
from addon.hooks.secrets import clean, redact, redaction_of
from addon.hooks.upstream_flows import METADATA, Origin, ShadowFlows

logger = logging.getLogger("toolgraft")


class Recording:
    """Runs after the grafting, which keeps the client's request and the upstream's answer."""

    def __init__(self, lifecycle: Lifecycle, routing: Routing, grafting: Grafting, shadow_flows: ShadowFlows) -> None:
        self.lifecycle = lifecycle
        self.routing = routing
        self.grafting = grafting
        self.shadow_flows = shadow_flows
        self._path = ""
        self._configured = False
        self._file: IO[bytes] | None = None

    def configure(self, updated: set[str]) -> None:
        path = self._path_option()
        first, self._configured = not self._configured, True
        if path:
            try:
                self._writer(path)
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else error
                self.lifecycle.refuse(ValueError(f"graft_record={path!r}: cannot be written: {why}"), starting=first)
        self.grafting.is_recording = bool(path)

    def response(self, flow: http.HTTPFlow) -> None:
        if flow.websocket is None:
            self._record(flow)

    def websocket_end(self, flow: http.HTTPFlow) -> None:
        self._record(flow)

    def _record(self, flow: http.HTTPFlow) -> None:
        path = self._path_option()
        if not path or flow.response is None:
            return
        if (origin := self.shadow_flows.flows.get(flow)) is None:
            if flow not in self.routing.routes or flow in answered_here:
                return  # nothing went upstream
            bodies = self.grafting.recorded.get(flow)
            sent = bodies.sent if bodies is not None else flow.request.content or b""  # which was not rewritten
            origin = Origin(self.routing.routes[flow].session, sent)
        try:
            self._writer(path).add(self._copy_without_secrets(flow, origin))
            assert self._file is not None
            self._file.flush()
        except OSError as error:
            logger.warning(f"graft_record={path!r}: {error.strerror}")

    def done(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _path_option(self) -> str | None:
        runtime = self.lifecycle.runtime
        return runtime.settings.record if runtime is not None else None

    def _writer(self, path: str) -> io.FlowWriter:
        if self._file is None or self._path != path:
            self.done()
            descriptor = os.open(os.path.expanduser(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._file, self._path = os.fdopen(descriptor, "ab"), path
        return io.FlowWriter(self._file)

    def _copy_without_secrets(self, flow: http.HTTPFlow, origin: Origin) -> http.HTTPFlow:
        copy: http.HTTPFlow = flow.copy()
        assert copy.response is not None
        bodies = self.grafting.recorded.get(flow)
        if bodies is not None and bodies.received is not None:
            copy.response.headers.pop("content-encoding", None)
            copy.response.headers.pop("transfer-encoding", None)
            copy.response.content = bytes(bodies.received)
        runtime = self.lifecycle.runtime
        asker = asker_digest(runtime.store.secret, asker_in(flow.request)).hex() if runtime is not None else ""
        redaction = redaction_of(flow)
        clean(copy.request)
        clean(copy.response)
        redact(copy, redaction, self.lifecycle.settings())
        sent = None if origin.sent is None else redaction.data(origin.sent)
        body = {} if sent is None else {"client_body": base64.b64encode(sent).decode()}
        # no other metadata: mitmproxy's contains the user's password, and other addons' may contain anything
        copy.metadata = {
            METADATA: {
                **flow.metadata.get(METADATA, {}),
                "session": origin.session,
                "asker": asker,
                **body,
            }
        }
        return copy
