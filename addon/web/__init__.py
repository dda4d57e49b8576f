"""Shared by the control API, the console and the gateway: routing, problems, the guard, the embedded server."""
