"""Tool sources list tools and run calls; each kind is one module. Imports only surfaces and core.

Tool files import `tool`, `ToolError`, `Image` and `Media` from here, so nothing heavy is imported.
"""

from addon.tools.base import ToolError, tool
from addon.tools.outputs import Image, Media

__all__ = ["Image", "Media", "ToolError", "tool"]
