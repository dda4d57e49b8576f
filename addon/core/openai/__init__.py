"""The OpenAI Responses API in front of Gemini, as pure conversions: requests in, items, events and errors out.

`read` understands a request, `Wanted.add_to` turns its input into what it adds to a history. No I/O, no clock.
"""

from addon.core.openai.invalid import Invalid
from addon.core.openai.past import Added, Past
from addon.core.openai.request import Wanted, read
from addon.core.openai.tools import function_tools

__all__ = ["Added", "Invalid", "Past", "Wanted", "function_tools", "read"]
