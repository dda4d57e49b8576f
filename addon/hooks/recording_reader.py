"""Reads the flow files of `graft_record` and of mitmproxy's `-w`."""

import base64
from pathlib import Path
from typing import Any

from mitmproxy import exceptions, http, io

from addon.graft.replay import ClientRequest, RecordedRequest
from addon.hooks.messages import asker_in
from addon.hooks.upstream_flows import METADATA
from addon.surfaces.incoming import Operation
from addon.surfaces.registry import match, match_path


def recorded_requests(path: Path) -> list[RecordedRequest]:
    """The requests of a file that a surface recognises. Raises OSError, or ValueError if mitmproxy cannot read it."""
    found = []
    for flow in flows_of(path):
        request = flow.request
        target = match(request.method, request.host, request.path) or match_path(request.method, request.path)
        if target is None or target.operation is Operation.LIVE:
            continue  # a Live connection's messages are not in its request
        client, body, url = client_request(flow), request.content or b"", request.pretty_url
        found.append(RecordedRequest(target, request.method, request.path, url, body, client, _asker(flow)))
    return found


def flows_of(path: Path) -> list[http.HTTPFlow]:
    """The HTTP flows of a file. Raises OSError, or ValueError if mitmproxy cannot read it."""
    with path.open("rb") as file:
        try:
            return [flow for flow in io.FlowReader(file).stream() if isinstance(flow, http.HTTPFlow)]
        except exceptions.FlowReadException as error:
            raise ValueError(f"{path}: not a file of mitmproxy flows: {error}") from error


def client_request(flow: http.HTTPFlow) -> ClientRequest:
    """The client's request behind a recorded flow."""
    metadata = _metadata(flow)
    grafted = "client_body" not in metadata
    body = flow.request.content or b"" if grafted else base64.b64decode(metadata["client_body"])
    session = str(metadata["session"]) if "session" in metadata else None
    return ClientRequest(body, grafted, session, metadata.get("client_tools") == "keep")


def _asker(flow: http.HTTPFlow) -> str | bytes:
    """Who asked: the digest from the recording proxy's store, or the asker in the flow's request."""
    digest = _metadata(flow).get("asker")
    return bytes.fromhex(digest) if isinstance(digest, str) else asker_in(flow.request)


def _metadata(flow: http.HTTPFlow) -> dict[str, Any]:
    metadata = flow.metadata.get(METADATA)
    return metadata if isinstance(metadata, dict) else {}
