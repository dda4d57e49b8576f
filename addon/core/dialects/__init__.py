"""Other languages as Gemini's documents, and back: chat completions, Responses, Interactions."""
