"""The Gemini Developer API: `/{version}/models/M:…`, `/{version}/tunedModels/M:…`, `/{version}/cachedContents`."""

import re

from addon.surfaces.surface import METHOD, Surface

SURFACE = Surface(
    name="developer",
    host=re.compile(r"generativelanguage\.(?:mtls\.)?googleapis\.com"),
    path=re.compile(
        r"/+v1(?:alpha|beta)?/(?:cachedContents|(?P<resource>(?:models|tunedModels)/(?P<model>[^/]+))" + METHOD + ")"
    ),
)
