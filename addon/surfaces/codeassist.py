"""Code Assist, for gemini-cli's login and Antigravity: requests and answers have an envelope.

The answer of `countTokens` has no envelope, but is not inspected.
"""

import re

from addon.core.framing.documents import decode, get
from addon.core.history.request import Request
from addon.surfaces.surface import METHOD, Surface, Wire


class CodeAssistWire(Wire):
    def project_and_chat(self, request: Request) -> tuple[str, str]:
        envelope = decode(request.body[: request.start] + b"null" + request.body[request.end :])
        project, name = get(envelope, "project"), decode(request.value("sessionId") or b"null")
        return project if isinstance(project, str) else "", name if isinstance(name, str) else ""


SURFACE = Surface(
    name="codeassist",
    host=re.compile(
        r"(?:daily-)?cloudcode-pa\.googleapis\.com|(?:daily|autopush)-cloudcode-pa\.sandbox\.googleapis\.com"
    ),
    path=re.compile(r"/+v1internal" + METHOD),
    request_path=("request",),
    response_path=("response",),
    wire=CodeAssistWire,
    home=lambda path: "cloudcode-pa.googleapis.com" if path.lstrip("/").startswith("v1internal") else None,
)
