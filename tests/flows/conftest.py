"""mitmproxy's own deprecation warnings, kept out of the tests: its filters call pyparsing by its old names."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from tests.hooks import harness  # noqa: F401
