"""The OpenAI Responses API in front of Gemini, as pure conversions: requests in, items and errors out."""
