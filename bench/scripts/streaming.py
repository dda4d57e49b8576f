"""For bare mitmdump in comparisons of streams: passes event streams on as they arrive."""

from mitmproxy import http


def responseheaders(flow: http.HTTPFlow) -> None:
    assert flow.response is not None
    flow.response.stream = flow.response.headers.get("content-type", "").startswith("text/event-stream")
