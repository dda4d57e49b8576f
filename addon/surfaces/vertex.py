"""Vertex AI: regional, global and express endpoints, `rep` and mtls hosts, publishers' models and users' endpoints."""

import re

from addon.surfaces.surface import METHOD, Surface

_PROJECT = r"projects/[^/]+/locations/[^/]+/"

_HOME = re.compile(r"/+v1(?:alpha1|beta1)?/(?:projects/[^/]+/locations/(?P<location>[a-z0-9-]+)/|publishers/)")


def home(path: str) -> str | None:
    """The host for a path. Each location has one; continents have another form, and `global` and express the common
    host."""
    found = _HOME.match(path)
    if found is None:
        return None
    match found["location"]:
        case None | "global":
            return "aiplatform.googleapis.com"
        case "us" | "eu" as continent:
            return f"aiplatform.{continent}.rep.googleapis.com"
        case location:
            return f"{location}-aiplatform.googleapis.com"


SURFACE = Surface(
    name="vertex",
    host=re.compile(
        r"(?:[^/]+-)?aiplatform\.(?:mtls\.)?googleapis\.com|aiplatform\.[a-z0-9-]+\.rep\.(?:mtls\.)?googleapis\.com"
    ),
    path=re.compile(
        rf"/+v1(?:alpha1|beta1)?/(?:{_PROJECT}cachedContents"
        rf"|(?:{_PROJECT})?(?:publishers/[^/]+/models|endpoints)/(?P<model>[^/]+){METHOD})"
    ),
    home=home,
)
