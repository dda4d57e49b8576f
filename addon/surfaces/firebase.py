"""Firebase AI: the paths of Vertex AI, and those of the Developer API below a project."""

import re

from addon.surfaces.surface import METHOD, Surface

_HOME = re.compile(r"/+v1(?:alpha|beta)/projects/")

SURFACE = Surface(
    name="firebase",
    host=re.compile(r"firebasevertexai\.googleapis\.com"),
    path=re.compile(
        r"/+v1(?:alpha|beta)?/projects/[^/]+/(?:locations/[^/]+/)?(?:publishers/[^/]+/)?models/(?P<model>[^/]+)"
        + METHOD
    ),
    home=lambda path: "firebasevertexai.googleapis.com" if _HOME.match(path) else None,
)
