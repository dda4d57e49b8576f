"""What mitmproxy loads: `mitmdump -s addon/entry.py`."""

from addon.hooks.compose import build_addons

addons = build_addons()
