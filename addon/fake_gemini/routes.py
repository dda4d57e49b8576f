"""Finds the surface and method of a path, and the model of a name. Pure."""

import re
from dataclasses import dataclass

_METHOD = r"(?P<method>generateContent|streamGenerateContent|countTokens)"
_VERTEX = r"(?:projects/[^/]+/locations/[^/]+/)?"
_ROUTES = (
    ("developer", rf"(?P<version>v1|v1beta|v1alpha)/(?:models|tunedModels)/(?P<model>[^/:]+):{_METHOD}"),
    ("developer", r"(?P<version>v1|v1beta|v1alpha)/(?P<method>models)/(?P<model>[^/:]+)"),
    ("developer", r"(?P<version>v1|v1beta|v1alpha)/(?P<method>cachedContents)(?:/(?P<name>[^/:]+))?"),
    (
        "interactions",
        rf"(?P<version>v1|v1beta|v1alpha|v1beta1)/{_VERTEX}(?P<method>interactions)(?:/(?P<name>[^/:]+))?",
    ),
    ("chat", r"(?P<version>v1|v1beta|v1alpha)/openai/(?P<method>chat/completions|embeddings)"),
    ("chat", r"(?P<version>v1|v1beta|v1alpha)/openai/(?P<method>models)(?:/(?:models/)?(?P<model>[^/:]+))?"),
    (
        "chat-vertex",
        r"(?P<version>v1|v1beta1)/projects/[^/]+/locations/[^/]+/endpoints/openapi/(?P<method>chat/completions)",
    ),
    (
        "vertex",
        rf"(?P<version>v1|v1beta1)/{_VERTEX}(?:publishers/google/models|endpoints)/(?P<model>[^/:]+):{_METHOD}",
    ),
    ("vertex", rf"(?P<version>v1|v1beta1)/{_VERTEX}publishers/google/(?P<method>models)/(?P<model>[^/:]+)"),
    (
        "vertex",
        r"(?P<version>v1|v1beta1)/projects/[^/]+/locations/[^/]+/(?P<method>cachedContents)(?:/(?P<name>[^/:]+))?",
    ),
    (
        "firebase",
        rf"(?P<version>v1beta)/projects/[^/]+/locations/[^/]+/publishers/google/models/(?P<model>[^/:]+):{_METHOD}",
    ),
    ("firebase-developer", rf"(?P<version>v1beta)/projects/[^/]+/models/(?P<model>[^/:]+):{_METHOD}"),
    ("codeassist", rf"(?P<version>v1internal):{_METHOD}"),
    (
        "developer",
        r"ws/google\.ai\.generativelanguage\.(?P<version>v1|v1beta|v1alpha)\.GenerativeService\."
        r"(?P<method>BidiGenerateContent)(?:Constrained)?",
    ),
    (
        "vertex",
        r"ws/google\.cloud\.aiplatform\.(?P<version>v1|v1beta1)\.LlmBidiService/(?P<method>BidiGenerateContent)",
    ),
)
_COMPILED = tuple((surface, re.compile(rf"/+{pattern}")) for surface, pattern in _ROUTES)


@dataclass(frozen=True, slots=True)
class Route:
    """A recognised path. ``model`` and ``name`` are empty if the path has none."""

    surface: str
    version: str
    method: str
    model: str
    name: str

    @property
    def place(self) -> frozenset[str]:
        """The names of this service in the table of ``fields``."""
        if self.surface == "vertex" and self.version == "v1":
            return frozenset({"vertex", "vertex-v1"})
        if self.surface in ("firebase", "codeassist"):
            return frozenset({"vertex", self.surface})
        if self.surface == "firebase-developer":  # Firebase in front of the Developer API instead of Vertex
            return frozenset({"developer", self.surface})
        if self.surface in ("chat", "chat-vertex"):  # OpenAI's format
            return frozenset({"developer" if self.surface == "chat" else "vertex"})
        return frozenset({self.surface})


def find_route(path: str) -> Route | None:
    """The route of a path (without query), or None."""
    for surface, pattern in _COMPILED:
        if match := pattern.fullmatch(path):
            found = match.groupdict(default="")
            return Route(surface, found["version"], found["method"], found.get("model", ""), found.get("name", ""))
    return None


_NAME = re.compile(r"gemini-(?:live-)?(\d+)(?:\.(\d+))?-[a-z][\w.-]*")
_LATEST = re.compile(r"gemini-(?:flash|pro|flash-lite)-latest")


@dataclass(frozen=True, slots=True)
class Model:
    """A model's name and generation, e.g. ``("gemini-2.5-flash", (2, 5))``."""

    name: str
    version: tuple[int, int]

    @property
    def is_gemini_3(self) -> bool:
        """Gemini 3 or newer: ids, checked signatures, functions together with JSON output."""
        return self.version >= (3, 0)

    @property
    def is_gemini_3_5(self) -> bool:
        """3.5 or newer: signatures are checked in all turns, and role ``function`` is refused."""
        return self.version >= (3, 5)

    @property
    def waits_only_if_declared(self) -> bool:
        """3.8 or newer, on Live: waits only for functions declared BLOCKING, and always accepts input."""
        return self.version >= (3, 8)

    @property
    def live(self) -> bool:
        """Whether it supports the Live API."""
        return "live" in self.name or "native-audio" in self.name


def find_model(name: str) -> Model | None:
    """The model of a name, with or without ``models/``; None if the service would answer 404."""
    name = name.removeprefix("models/")
    if _LATEST.fullmatch(name):
        return Model(name, (3, 5))
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    version = (int(match[1]), int(match[2] or 0))
    return Model(name, version) if (2, 0) <= version < (5, 0) else None
