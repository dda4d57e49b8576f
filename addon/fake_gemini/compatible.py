"""Models and embeddings of the OpenAI-compatible endpoint. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

from addon.fake_gemini.errors import Json, Refused

_MODELS = ("models/gemini-2.5-flash", "models/gemini-3-flash-preview", "models/gemini-embedding-001")
_EMBEDS = ("gemini-embedding-001", "gemini-embedding-2")
_DIMENSIONS, _MOST_TEXTS = 3072, 100


def models() -> Json:
    return {"object": "list", "data": [model(name) for name in _MODELS]}


def model(name: str) -> Json:
    return {"id": name, "object": "model", "owned_by": "google", "display_name": name.rpartition("/")[2]}


def embeddings(document: Any) -> Json:
    """Vectors that follow from the texts alone. Raises ``Refused``. The messages are own words."""
    if not isinstance(document, dict):
        raise Refused("Invalid JSON payload received.")
    name = str(document.get("model", "")).removeprefix("models/")
    if name not in _EMBEDS:
        raise Refused(
            f"models/{name} is not found for API version v1main, or is not supported for embedContent.", code=404
        )
    given = document.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) and one for one in texts):
        raise Refused("input must be a text or a list of texts.")
    if len(texts) > _MOST_TEXTS:
        raise Refused(f"at most {_MOST_TEXTS} requests can be in one batch.")
    size = document.get("dimensions", _DIMENSIONS)
    if type(size) is not int or not 1 <= size <= _DIMENSIONS:
        raise Refused(f"dimensions must be between 1 and {_DIMENSIONS}.")
    data = [{"object": "embedding", "index": at, "embedding": _vector(one, size)} for at, one in enumerate(texts)]
    return {"object": "list", "data": data, "model": name, "usage": {"prompt_tokens": 0, "total_tokens": 0}}


def _vector(text: str, size: int) -> list[float]:
    return [byte / 127.5 - 1 for byte in hashlib.shake_128(text.encode()).digest(size)]
