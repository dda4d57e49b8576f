"""The log of mitmdump (`graft_log`): no line for each connection, one line for each request of a client instead of its
own lines, and JSON documents if wanted.

With a `flow_detail` of 2 or more, its own lines stay too. Requests to other hosts than models keep them in any
case, except in JSON. In mitmproxy and mitmweb, which show a list of flows, the same line becomes the comment of the
client's request.
"""

import json
import logging
import time
from datetime import UTC, datetime
from typing import Any

from mitmproxy import ctx, flow, flowfilter, http
from mitmproxy.hooks import UpdateHook

from addon.core.summaries import ANSWERED_HERE, FIELDS, SYMBOLS, Summary, ascii_only, fields_of, line_of
from addon.hooks.delivered import answered_here
from addon.hooks.grafting import Grafting
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.messages import value
from addon.hooks.mitmproxy_patches import error_response
from addon.hooks.routing import Route, Routing
from addon.hooks.secrets import DETAILS
from addon.hooks.upstream_flows import ShadowFlows
from addon.surfaces.incoming import Operation

_CONNECTIONS = "mitmproxy.proxy.server"
"""mitmproxy's logger of connections."""

_ROUTINE = (
    *("client connect", "client disconnect", "server connect ", "server disconnect "),
    *("Streaming request to ", "Streaming response from "),
)
"""The first words of its routine messages."""


class LogLines:
    def __init__(self) -> None:
        self._usual: logging.Formatter | None = None
        self._hides_routine = False

    def configure(self, updated: set[str]) -> None:
        termlog: Any = ctx.master.addons.get("termlog")
        if termlog is None or updated.isdisjoint(("graft_log", "flow_detail", "termlog_verbosity")):
            return
        log, handler = ctx.options.graft_log, termlog.logger
        detail = ctx.options.flow_detail if "flow_detail" in ctx.options else 0  # mitmweb has no such option
        asks_for_more = detail >= DETAILS or ctx.options.termlog_verbosity == "debug"
        self._hides_routine = log != "mitmproxy" and not asks_for_more
        handler.addFilter(self._lets_through)
        if self._usual is None:
            self._usual = handler.formatter
        handler.setFormatter(JsonFormatter() if log == "json" else self._usual)

    def _lets_through(self, record: logging.LogRecord) -> bool:
        is_routine = record.name == _CONNECTIONS and isinstance(record.msg, str) and record.msg.startswith(_ROUTINE)
        return not (is_routine and self._hides_routine)


class JsonFormatter(logging.Formatter):
    """Formats a line of the log as a JSON document. Records hold no secrets: see `masking`."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, FIELDS, {})
        document = {"time": iso_time(record.created), "level": record.levelname.lower(), "event": "log", **fields}
        return json.dumps({**document, "message": record.getMessage()})


def iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


class RequestLines:
    """Runs after the grafting, which completes the summary of an answer."""

    def __init__(self, lifecycle: Lifecycle, routing: Routing, grafting: Grafting, shadow_flows: ShadowFlows) -> None:
        self.lifecycle = lifecycle
        self.routing = routing
        self.grafting = grafting
        self.shadow_flows = shadow_flows
        self._dumper: Any = None
        self._detail = 0
        self._shows_unicode = False
        self._has_flow_list = False

    def configure(self, updated: set[str]) -> None:
        if "flow_detail" in updated:
            self._detail = ctx.options.flow_detail  # cached, because reading an option copies it

    def running(self) -> None:
        if (runtime := self.lifecycle.runtime) is not None:
            runtime.report = self._report
        self._has_flow_list = self.shadow_flows.has_comments = ctx.master.addons.get("view") is not None
        dumper: Any = ctx.master.addons.get("dumper")
        if dumper is None or self._dumper is dumper:
            return
        self._dumper, match = dumper, dumper.match
        self._detail = ctx.options.flow_detail
        self._shows_unicode = _can_show(SYMBOLS, getattr(dumper.outfp, "encoding", None))
        # without output, mitmdump need not read `flow_detail` either
        dumper.match = lambda about: self._detail != 0 and not self._replaces(about) and match(about)

    def response(self, flow: http.HTTPFlow) -> None:
        if flow.websocket is None:
            self._show(flow)

    def error(self, flow: http.HTTPFlow) -> None:
        if flow.websocket is None:
            self._show(flow)

    def websocket_start(self, flow: http.HTTPFlow) -> None:
        """List a Live connection from its beginning."""
        route, runtime = self.routing.routes.get(flow), self.lifecycle.runtime
        if route is not None and runtime is not None:
            self.grafting.summaries[flow] = summary = _new_summary(flow, route)
            runtime.recent.begin(summary)

    def websocket_end(self, flow: http.HTTPFlow) -> None:
        self._show(flow)

    # --- which lines ------------------------------------------------------------------------------------------

    def _replaces(self, about: flow.Flow) -> bool:
        """Whether mitmdump's own lines about a flow are left out."""
        log = self.lifecycle.settings().log
        if log != "toolgraft":
            return log == "json"
        if self._detail >= DETAILS or not isinstance(about, http.HTTPFlow):
            return False
        return about in self.routing.routes or about in self.shadow_flows.flows

    def _show(self, flow: http.HTTPFlow) -> None:
        route, runtime = self.routing.routes.get(flow), self.lifecycle.runtime
        summary = None if route is None else self._summary(flow, route)
        if summary is not None:
            if self._has_flow_list:
                _comment(flow, summary)
            if runtime is not None:
                runtime.recent.end(summary)
        dumper = self._dumper
        if dumper is None or not self._detail:
            return
        log = self.lifecycle.settings().log
        if log == "mitmproxy" or (dumper.filter is not None and not flowfilter.match(dumper.filter, flow)):
            return
        if summary is not None:
            self._write(summary)
        elif log == "json" and flow not in self.shadow_flows.flows:
            self._write_document(_fields_of_other(flow))

    def _summary(self, flow: http.HTTPFlow, route: Route) -> Summary:
        summary = self.grafting.summaries.pop(flow)
        if summary is None:
            summary = _new_summary(flow, route)
            if flow in answered_here:
                summary.end = ANSWERED_HERE
        if flow.response is not None:
            summary.status = flow.response.status_code
        if flow.error is not None:
            # The flow of a waiting client that is gone gets killed, as by a script: nobody gets a response.
            was_killed = flow.error.msg == flow.error.KILLED_MESSAGE
            by_client = "client" in flow.error.msg.lower() or (was_killed and not flow.client_conn.connected)
            summary.end = "the client hung up" if by_client else flow.error.msg
            gets_error = flow.response is None and not by_client and not was_killed
            if gets_error and (make := error_response.get(flow)) is not None:
                summary.status = make(flow.error.msg).status_code  # the client gets this instead
        summary.seconds = max(0.0, time.time() - flow.request.timestamp_start)
        return summary

    # --- output -----------------------------------------------------------------------------------------------

    def _report(self, summary: Summary) -> None:
        """Log a request to a front door that has ended."""
        if self.lifecycle.runtime is not None:
            self.lifecycle.runtime.recent.end(summary)
        if self._dumper is not None and self._detail and self.lifecycle.settings().log != "mitmproxy":
            self._write(summary)

    def _write(self, summary: Summary) -> None:
        summary.count_end()
        if self.lifecycle.settings().log == "json":
            self._write_document(fields_of(summary))
            return
        line = line_of(summary)
        self._dumper.outfp.write(f"{line if self._shows_unicode else ascii_only(line)}\n")

    def _write_document(self, fields: dict[str, Any]) -> None:
        document = {"time": iso_time(time.time()), "level": "info", **fields}
        self._dumper.outfp.write(f"{json.dumps(document)}\n")


def _new_summary(flow: http.HTTPFlow, route: Route) -> Summary:
    target = route.target
    summary = Summary(route.session, target.surface, target.operation, target.model)
    summary.is_streamed = target.operation is Operation.STREAM
    summary.note_client(value(flow.request.headers, b"user-agent"))
    return summary


def _comment(flow: http.HTTPFlow, summary: Summary) -> None:
    """Put mitmdump's line about a request into the flow list of mitmproxy or mitmweb."""
    if not flow.comment:
        summary.count_end()
        flow.comment = line_of(summary)
        ctx.master.addons.trigger(UpdateHook([flow]))


def _fields_of_other(flow: http.HTTPFlow) -> dict[str, Any]:
    """A request to no model. Left out: its path, which may contain anything."""
    return {
        "event": "other_request",
        "method": flow.request.method,
        "host": flow.request.host,
        "status": flow.response.status_code if flow.response is not None else None,
        "end": flow.error.msg if flow.error is not None else "",
    }


def _can_show(text: str, encoding: str | None) -> bool:
    try:
        text.encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
