"""toolgraft: a mitmproxy addon that grafts tool calling onto any Gemini client."""

from pathlib import Path


def package_version() -> str:
    """The installed version; in a checkout, the one in pyproject.toml; "unknown" if there is neither."""
    import tomllib  # slow, as the next one
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("toolgraft")
    except PackageNotFoundError:
        pass
    try:
        text = (Path(__file__).resolve().parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    found: str = tomllib.loads(text)["project"]["version"]
    return found
