"""The public interface for tools files: `from toolgraft import tool, ToolError`."""

from addon.tools.base import ToolError
from addon.tools.rules import tool

__all__ = ["ToolError", "tool"]
