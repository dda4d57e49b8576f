"""The public interface for tools files: `from toolgraft import tool, ToolError, Image, Media`."""

from addon.tools.base import ToolError, tool
from addon.tools.outputs import Image, Media

__all__ = ["Image", "Media", "ToolError", "tool"]
