"""Chat completions of OpenAI ↔ Gemini's documents: requests as Contents and as messages again, and answers. Pure."""
