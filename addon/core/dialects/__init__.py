"""Conversions between Gemini and other APIs: chat completions, Responses, Interactions."""
