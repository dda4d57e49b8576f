"""What mitmproxy loads: `mitmdump -s addon/entry.py`. What keeps the addon from being loaded ends the start."""

import logging

try:
    from addon.hooks.compose import build_addons

    addons = build_addons()
except Exception as error:
    logging.getLogger("toolgraft").error(
        "toolgraft cannot be loaded: %s: %s. Start it with ./run_proxy.sh, which has all that it needs.",
        type(error).__name__,
        error,
    )
