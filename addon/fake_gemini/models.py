"""The models of the strict local Gemini, and the differences between their generations. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
