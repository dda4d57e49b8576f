"""The Interactions API as Gemini's documents, and back."""
