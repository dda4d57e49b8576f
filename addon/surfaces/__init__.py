"""The families of Gemini endpoints. Pure."""
