"""The families of Gemini endpoints: one module per surface, and one registry. Pure."""

from addon.surfaces.base import Framing, Operation, Target
from addon.surfaces.registry import home_of, is_surface_host, is_surface_path, match, match_path, takes_ids, wire_of

__all__ = [
    "Framing",
    "Operation",
    "Target",
    "home_of",
    "is_surface_host",
    "is_surface_path",
    "match",
    "match_path",
    "takes_ids",
    "wire_of",
]
