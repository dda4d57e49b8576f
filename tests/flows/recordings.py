"""Reads the recorded chats that `make.py` makes."""

from pathlib import Path
from typing import Any

from mitmproxy import http, io

from addon.core.history.placeholder import TURN_ID
from addon.hooks.recording_reader import client_request
from tests.e2e.proxies import weather

FOLDER = Path(__file__).parent
RECORDINGS = sorted(FOLDER.glob("*.mitm"))
RESULTS: dict[str, Any] = {"get_weather": weather, "get_time": lambda zone: {"hour": 12}}
"""The tools' results when the chats were recorded."""


def flows_of(path: Path) -> list[http.HTTPFlow]:
    with path.open("rb") as file:
        return [flow for flow in io.FlowReader(file).stream() if isinstance(flow, http.HTTPFlow)]


def sent_by_client(flow: http.HTTPFlow) -> bytes:
    """The request's body before it was rewritten."""
    return client_request(flow).body


def turn_ids(flows: list[http.HTTPFlow]) -> list[str]:
    """The turn ids that the recording's proxy made, in order."""
    sent = b"".join(map(sent_by_client, flows)).decode()
    return list(dict.fromkeys(TURN_ID.findall(sent)))
