"""Requests and answers of `/v1/responses` in the OpenAPI document."""

from addon.core.framing.documents import Document

ASKED = {
    "model": "gemini-3-flash",
    "input": "What is the weather in Tokyo?",
    "tools": [
        {
            "type": "function",
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        }
    ],
    "conversation": "trip",
}
ANSWER = {
    "id": "resp_5d0c2f",
    "object": "response",
    "status": "completed",
    "model": "gemini-3-flash",
    "output": [
        {
            "type": "function_call",
            "id": "fc_1b6a",
            "call_id": "call_77e0",
            "name": "get_weather",
            "arguments": '{"city":"Tokyo"}',
            "status": "completed",
        }
    ],
}
LISTED = {
    "object": "list",
    "data": [
        {
            "id": "msg_90cc",
            "type": "message",
            "role": "user",
            "status": "completed",
            "content": [{"type": "input_text", "text": "What is the weather in Tokyo?"}],
        }
    ],
    "first_id": "msg_90cc",
    "last_id": "msg_90cc",
    "has_more": False,
}
LIST: dict[str, Document] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    "order": {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    "after": {"type": "string", "description": "An item's id."},
}
COMPACTED = {
    "id": "resp_5d0c2f",
    "object": "response.compaction",
    "created_at": 1790000000,
    "output": [{"type": "compaction", "id": "cmp_41d9", "encrypted_content": "gAAAAABq…"}],
    "usage": {
        "input_tokens": 912,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 88,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 1000,
    },
}
COUNTED = {"object": "response.input_tokens", "input_tokens": 41}
DELETED = {"id": "resp_5d0c2f", "object": "response", "deleted": True}
