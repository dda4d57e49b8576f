"""API keys in URLs and headers, kept out of mitmdump's console."""

from typing import IO, Any

from mitmproxy import ctx

from addon.hooks.secrets import masked, masked_lines


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
        return self._file.write(masked_lines(masked(text)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
