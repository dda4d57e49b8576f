"""Vertex AI: regional, global and express endpoints, `rep` and mtls hosts, publishers' models and own endpoints."""

import re

from addon.surfaces.base import METHOD, Surface

_PROJECT = r"projects/[^/]+/locations/[^/]+/"

SURFACE = Surface(
    name="vertex",
    host=re.compile(
        r"(?:[^/]+-)?aiplatform\.(?:mtls\.)?googleapis\.com|aiplatform\.[a-z0-9-]+\.rep\.(?:mtls\.)?googleapis\.com"
    ),
    path=re.compile(
        rf"/+v1(?:alpha1|beta1)?/(?:{_PROJECT}cachedContents"
        rf"|(?:{_PROJECT})?(?:publishers/[^/]+/models|endpoints)/(?P<model>[^/]+){METHOD})"
    ),
)
