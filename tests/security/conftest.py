"""mitmproxy's own deprecation warnings kept out of these tests."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # mitmproxy's filters call pyparsing by its old names
    import mitmproxy.addons  # noqa: F401
