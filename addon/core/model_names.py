"""Names of Gemini models, aliases for them, and the versions in them. Pure."""

import re

from addon.core.security.untrusted import cached_if_short

MODEL_NAME = re.compile(r"(?:(?:models|tunedModels)/)?[A-Za-z0-9][\w.-]{0,127}", re.ASCII)
"""The name becomes part of a URL."""
MODEL_FORM = "a model's name, such as gemini-3-flash or tunedModels/mine"
ALIAS = re.compile(r"[A-Za-z0-9][\w.:/@-]{0,127}", re.ASCII)

Generation = tuple[int, int] | None
"""A model's major and minor version; None if its name has no version. Such a model counts as the newest."""
_GENERATION = re.compile(r"gemini-(?:live-)?(\d{1,3})(?:\.(\d{1,3}))?(?!\d)")


@cached_if_short(256)
def generation(model: str) -> Generation:
    """`gemini-2.5-flash` → (2, 5)."""
    found = _GENERATION.search(model)
    return (int(found[1]), int(found[2] or 0)) if found else None


def is_before(model: Generation, version: tuple[int, int]) -> bool:
    return model is not None and model < version
