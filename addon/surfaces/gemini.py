"""The surfaces in Gemini's own format: the Developer API, Vertex AI and Firebase AI.

- Developer API: `/{version}/models/M:…`, `/{version}/tunedModels/M:…`, `/{version}/cachedContents`.
- Vertex AI: regional, global and express endpoints, `rep` and mtls hosts, publishers' models and users' endpoints.
- Firebase AI: the paths of Vertex AI, and those of the Developer API below a project.
"""

import re

from addon.surfaces.surface import METHOD, Surface

DEVELOPER = Surface(
    name="developer",
    host=re.compile(r"generativelanguage\.(?:mtls\.)?googleapis\.com"),
    path=re.compile(
        r"/+v1(?:alpha|beta)?/(?:cachedContents|(?P<resource>(?:models|tunedModels)/(?P<model>[^/]+))" + METHOD + ")"
    ),
)


_PROJECT = r"projects/[^/]+/locations/[^/]+/"

_VERTEX_HOME = re.compile(r"/+v1(?:alpha1|beta1)?/(?:projects/[^/]+/locations/(?P<location>[a-z0-9-]+)/|publishers/)")


def _vertex_home(path: str) -> str | None:
    """The host for a path. Each location has one; continents have another form, and `global` and express the common
    host."""
    found = _VERTEX_HOME.match(path)
    if found is None:
        return None
    match found["location"]:
        case None | "global":
            return "aiplatform.googleapis.com"
        case "us" | "eu" as continent:
            return f"aiplatform.{continent}.rep.googleapis.com"
        case location:
            return f"{location}-aiplatform.googleapis.com"


VERTEX = Surface(
    name="vertex",
    host=re.compile(
        r"(?:[^/]+-)?aiplatform\.(?:mtls\.)?googleapis\.com|aiplatform\.[a-z0-9-]+\.rep\.(?:mtls\.)?googleapis\.com"
    ),
    path=re.compile(
        rf"/+v1(?:alpha1|beta1)?/(?:{_PROJECT}cachedContents"
        rf"|(?:{_PROJECT})?(?:publishers/[^/]+/models|endpoints)/(?P<model>[^/]+){METHOD})"
    ),
    home=_vertex_home,
)


_FIREBASE_HOME = re.compile(r"/+v1(?:alpha|beta)/projects/")

FIREBASE = Surface(
    name="firebase",
    host=re.compile(r"firebasevertexai\.googleapis\.com"),
    path=re.compile(
        r"/+v1(?:alpha|beta)?/projects/[^/]+/(?:locations/[^/]+/)?(?:publishers/[^/]+/)?models/(?P<model>[^/]+)"
        + METHOD
    ),
    home=lambda path: "firebasevertexai.googleapis.com" if _FIREBASE_HOME.match(path) else None,
)
