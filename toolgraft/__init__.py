"""The public interface for tools files: `from toolgraft import tool, ToolError`."""

from addon.tools.base import ToolError
from addon.tools.decorator import tool

__all__ = ["ToolError", "tool"]
