"""toolgraft: a mitmproxy addon that grafts tool calling onto any Gemini client."""
