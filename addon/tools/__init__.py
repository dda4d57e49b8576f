"""Tool sources list tools and run calls; each kind is one module. Imports only surfaces and core.

Tool files import `tool` and `ToolError` from here, so nothing heavy is imported.
"""

from addon.tools.base import ToolError
from addon.tools.decorator import tool

__all__ = ["ToolError", "tool"]
