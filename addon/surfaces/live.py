"""The Live API: WebSockets at the hosts of the Developer API and Vertex AI, with a GET as handshake.

The path contains only the API's version. Model and tools are in the frames.
"""

import re

from addon.surfaces import gemini
from addon.surfaces.incoming import Operation
from addon.surfaces.surface import Surface

_VERTEX = r"google\.cloud\.aiplatform\.v\w+\.LlmBidiService/"
_HOME = re.compile(r"/+ws/" + _VERTEX)

SURFACE = Surface(
    name="live",
    host=re.compile(f"{gemini.DEVELOPER.host.pattern}|{gemini.VERTEX.host.pattern}"),
    path=re.compile(
        rf"/+ws/(?:google\.ai\.generativelanguage\.v\w+\.GenerativeService\.|{_VERTEX})"
        r"BidiGenerateContent(?:Constrained)?"
    ),
    operation=Operation.LIVE,
    home=lambda path: "aiplatform.googleapis.com" if _HOME.match(path) else None,
    method="GET",
)
