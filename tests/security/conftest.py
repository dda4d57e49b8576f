"""mitmproxy's own deprecation warnings kept out of these tests."""

import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # mitmproxy's filters call pyparsing by its old names
    import mitmproxy.addons  # noqa: F401

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::pyparsing.warnings.PyparsingDeprecationWarning"))
