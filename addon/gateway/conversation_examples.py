"""Requests and answers of `/v1/conversations` in the OpenAPI document."""

from addon.core.framing.documents import Document

_MESSAGE: Document = {"type": "message", "role": "user", "content": "I am in Tokyo."}
BEGUN: Document = {"items": [_MESSAGE], "metadata": {"topic": "trip"}}
ADDED: Document = {"items": [_MESSAGE]}
SHOWN: Document = {
    "id": "conv_8c1f",
    "object": "conversation",
    "created_at": 1790000000,
    "metadata": {"topic": "trip"},
}
ITEM: Document = {
    "id": "msg_90cc",
    "type": "message",
    "role": "user",
    "status": "completed",
    "content": [{"type": "input_text", "text": "I am in Tokyo."}],
}
LISTED: Document = {
    "object": "list",
    "data": [ITEM],
    "first_id": "msg_90cc",
    "last_id": "msg_90cc",
    "has_more": False,
}
DELETED: Document = {"id": "conv_8c1f", "object": "conversation.deleted", "deleted": True}
