"""The file that mitmproxy loads: `mitmdump -s addon/entry.py`. If the addon cannot be loaded, the start ends."""

import logging

try:
    from addon.hooks.compose import build_addons

    addons = build_addons()
except Exception as error:
    logging.getLogger("toolgraft").error(
        "toolgraft cannot be loaded: %s: %s. Start it with ./run_proxy.sh, which installs everything it needs.",
        type(error).__name__,
        error,
    )
