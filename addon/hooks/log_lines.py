"""mitmdump's log (`graft_log`): leaves out a line for each connection, or writes each line as a JSON document."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

from mitmproxy import ctx

from addon.core.problems import FIELDS

DETAILS = 2
"""The lowest `flow_detail` that shows more of a flow than its URL."""

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
