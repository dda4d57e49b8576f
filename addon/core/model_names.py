"""Names of Gemini models, and aliases for them. Pure."""

import re

MODEL_NAME = re.compile(r"(?:(?:models|tunedModels)/)?[A-Za-z0-9][\w.-]{0,127}", re.ASCII)
"""The name becomes part of a URL."""
MODEL_FORM = "a model's name, such as gemini-3-flash or tunedModels/mine"
ALIAS = re.compile(r"[A-Za-z0-9][\w.:/@-]{0,127}", re.ASCII)
