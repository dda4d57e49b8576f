"""Conversions between OpenAI's chat completions and Gemini. Pure."""
