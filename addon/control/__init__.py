"""The control API. Knows the store and the settings, never mitmproxy."""
