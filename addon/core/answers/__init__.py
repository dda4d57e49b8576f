"""Answers of the model: their calls, and their usage."""
