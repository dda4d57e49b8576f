"""The code that the control API and the gateway share is tested through the control API."""

from tests.control.conftest import app, client, metrics, settings, store

__all__ = ["app", "client", "metrics", "settings", "store"]
