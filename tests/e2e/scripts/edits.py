"""A user's script, which edits requests, some of them by their model."""

from mitmproxy import http


class Edits:
    """`name`: early or late, which is when it is loaded."""

    def __init__(self, name: str) -> None:
        self.name = name

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        flow.request.headers[f"x-{self.name}"] = "seen"

    def request(self, flow: http.HTTPFlow) -> None:
        if "gemini-edited" in flow.request.path and flow.request.content:
            content = flow.request.content
            flow.request.content = content.replace(f"word {self.name}".encode(), f"WORD {self.name}".encode())
        if f"gemini-{self.name}-answers" in flow.request.path:
            flow.response = http.Response.make(200, b'{"candidates":[]}', {"content-type": "application/json"})
        if f"gemini-{self.name}-kills" in flow.request.path:
            flow.kill()

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        if flow.response is None:
            return
        if "gemini-edited" in flow.request.path:
            flow.response.headers[f"x-{self.name}"] = "answered"
        if f"gemini-{self.name}-status" in flow.request.path:
            flow.response.status_code = 429
        if f"gemini-{self.name}-pieces" in flow.request.path:
            flow.response.stream = lambda data: data.replace(b"hush", self.name[:4].upper().encode())

    def response(self, flow: http.HTTPFlow) -> None:
        if f"gemini-{self.name}-whole" in flow.request.path and flow.response is not None and flow.response.content:
            flow.response.content = flow.response.content.replace(b"hush", self.name[:4].upper().encode())
