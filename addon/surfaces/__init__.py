"""Where Gemini is spoken: one module a family of endpoints, one registry. Pure."""
