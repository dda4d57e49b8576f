"""Conversions between the Interactions API and Gemini."""
