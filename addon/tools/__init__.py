"""Tool sources: what lists tools and runs their calls. One module a kind; imports surfaces and core, nothing above.

What a file of tools needs is here, and light: `from addon.tools import tool`.
"""

from addon.tools.base import ToolError
from addon.tools.rules import tool

__all__ = ["ToolError", "tool"]
