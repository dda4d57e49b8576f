"""Answers of the model: calls taken out of them, and their usage."""
