"""Requests and answers of the OpenAI-compatible paths in the OpenAPI document."""

from typing import Any

CHAT: dict[str, Any] = {
    "model": "gemini-3-flash",
    "messages": [{"role": "user", "content": "What is the weather in Tokyo?"}],
}
COMPLETION = {
    "id": "cj8XaYuZ",
    "object": "chat.completion",
    "created": 1790000000,
    "model": "gemini-3-flash",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "It is 21 °C in Tokyo."}}
    ],
    "usage": {"prompt_tokens": 12, "completion_tokens": 9, "total_tokens": 21},
}
EMBED = {"model": "gemini-embedding-001", "input": ["The weather in Tokyo"]}
EMBEDDED = {
    "object": "list",
    "model": "gemini-embedding-001",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.013, -0.008]}],
}
MODELS: dict[str, Any] = {
    "object": "list",
    "data": [{"id": "models/gemini-3-flash", "object": "model", "owned_by": "google"}],
}
