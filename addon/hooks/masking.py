"""API keys in URLs, kept out of mitmdump's console."""

import re
from typing import IO, Any

from mitmproxy import ctx

_KEY = re.compile(r"([?&](?:key|access_token|api_key)=)[^&\s\x1b]+", re.IGNORECASE)


def masked(text: str) -> str:
    """The text with the value of every `key=` in a query replaced."""
    return _KEY.sub(r"\1***", text) if "=" in text else text


class Masking:
    def running(self) -> None:
        dumper: Any = ctx.master.addons.get("dumper")
        if dumper is not None and not isinstance(dumper.outfp, _Masked):
            dumper.outfp = _Masked(dumper.outfp)


class _Masked:
    """The file that the dumper writes to, with keys masked."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(masked(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
