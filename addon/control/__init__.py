"""The control API. Uses the store and the settings, never mitmproxy."""
