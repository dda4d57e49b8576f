"""The OpenAI Responses API in front of Gemini, as pure conversions: requests in, items, events and errors out.

`read_request` parses a request, `ResponsesRequest.add_to` converts its input to Contents for the history, a
`Translator` writes the answer, and `error_document` writes errors. No I/O, no clock.
"""

from addon.core.dialects.responses.answer import Translator, events_of, sse
from addon.core.dialects.responses.conversations import (
    compacted,
    conversation_document,
    input_page,
    read_added_items,
    read_compaction,
    read_conversation,
    read_metadata,
    stored_items,
    whole_items,
)
from addon.core.dialects.responses.errors import Invalid, Unsupported, error_document, error_status
from addon.core.dialects.responses.history import AddedContents, StoredCalls
from addon.core.dialects.responses.items import is_google_s_file, is_reference
from addon.core.dialects.responses.options import INCLUDABLE, conversation_tools
from addon.core.dialects.responses.request import ResponsesRequest, read_leniently, read_request

__all__ = [
    "INCLUDABLE",
    "AddedContents",
    "Invalid",
    "ResponsesRequest",
    "StoredCalls",
    "Translator",
    "Unsupported",
    "compacted",
    "conversation_document",
    "conversation_tools",
    "error_document",
    "error_status",
    "events_of",
    "input_page",
    "is_google_s_file",
    "is_reference",
    "read_added_items",
    "read_compaction",
    "read_conversation",
    "read_leniently",
    "read_metadata",
    "read_request",
    "sse",
    "stored_items",
    "whole_items",
]
