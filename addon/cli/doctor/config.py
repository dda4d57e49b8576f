"""The check of the toolgraft.toml that a start would use."""

from collections.abc import Iterator

from addon.cli.doctor.finding import Finding
from addon.config_file.choice import chosen_file
from addon.config_file.reading import load_config


def config() -> Iterator[Finding]:
    """Yields nothing without a file."""
    try:
        chosen = chosen_file(None)
        if chosen.notice is not None:
            yield Finding("config", "note", chosen.notice, "to use it, read it and run toolgraft trust")
        if chosen.path is not None:
            load_config(chosen.path, trusted=chosen.trusted)
            yield Finding("config", "ok", f"{chosen.path} fits")
    except (OSError, ValueError) as error:
        yield Finding("config", "wrong", str(error), "correct the line; toolgraft config check checks it")
