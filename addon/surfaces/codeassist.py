"""Code Assist, as gemini-cli's login and Antigravity speak it: the request and the answer sit in an envelope.

The answer of `countTokens` has no envelope, but nothing in it is looked at either.
"""

import re

from addon.surfaces.base import METHOD, Surface

SURFACE = Surface(
    name="codeassist",
    host=re.compile(
        r"(?:daily-)?cloudcode-pa\.googleapis\.com|(?:daily|autopush)-cloudcode-pa\.sandbox\.googleapis\.com"
    ),
    path=re.compile(r"/+v1internal" + METHOD),
    request_path=("request",),
    response_path=("response",),
    home=lambda path: "cloudcode-pa.googleapis.com" if path.lstrip("/").startswith("v1internal") else None,
)
