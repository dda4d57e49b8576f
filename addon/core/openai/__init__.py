"""The OpenAI Responses API in front of Gemini, as pure conversions: requests in, items, events and errors out.

`read_request` parses a request, `ResponsesRequest.add_to` converts its input to the Contents that the request adds to a
history, a `Translator` writes the answer, and `error_document` writes errors. No I/O, no clock.
"""

from addon.core.openai.errors import error_document, error_status
from addon.core.openai.input_items import input_page, stored_items
from addon.core.openai.invalid import Invalid
from addon.core.openai.past import AddedContents, StoredCalls
from addon.core.openai.replay import events_of
from addon.core.openai.request import ResponsesRequest, read_request
from addon.core.openai.tools import function_tools
from addon.core.openai.translator import Translator, sse

__all__ = [
    "AddedContents",
    "Invalid",
    "ResponsesRequest",
    "StoredCalls",
    "Translator",
    "error_document",
    "error_status",
    "events_of",
    "function_tools",
    "input_page",
    "read_request",
    "sse",
    "stored_items",
]
