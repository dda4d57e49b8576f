"""For the bare mitmdump that streams are compared with: lets event streams through as they come."""

from mitmproxy import http


def responseheaders(flow: http.HTTPFlow) -> None:
    assert flow.response is not None
    flow.response.stream = flow.response.headers.get("content-type", "").startswith("text/event-stream")
