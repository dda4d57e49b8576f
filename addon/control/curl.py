"""A request as a curl command for a shell. Secrets become shell variables."""

import re
import shlex
from collections.abc import Iterable

from addon.core.security.untrusted import printable, printable_json

_LONGEST_ARGUMENT = 100_000
"""The most bytes of a body in an argument: Linux takes 128 KiB. Longer bodies are given on the standard input."""

_VARIABLES = {"x-goog-api-key": "$GEMINI_API_KEY", "authorization": "Bearer $ACCESS_TOKEN"}


_GLOB = frozenset("[]{}")
"""Characters that curl takes for ranges and lists of URLs."""


def curl_command(
    method: str, url: str, headers: Iterable[tuple[str, str]], body: bytes, *, secret: str, options: Iterable[str] = ()
) -> str:
    """`secret`: the text in `url` and `headers` that stands for a secret value. `options`: further arguments. The
    body's invisible characters become JSON escapes. Raises ValueError if the body is not UTF-8."""
    text = printable_json(body.decode())
    lines = [f"curl -X {shlex.quote(method)} {_quoted(url, secret, '$GEMINI_API_KEY')}"]
    if not _GLOB.isdisjoint(url):
        lines.append("--globoff")
    lines += [shlex.quote(printable(option)) for option in options]
    for name, value in headers:
        lines.append(f"-H {_quoted(f'{name}: {value}', secret, _VARIABLES.get(name.lower(), _variable(name)))}")
    if len(text.encode()) <= _LONGEST_ARGUMENT:
        return " \\\n  ".join([*lines, f"--data-raw {shlex.quote(text)}"])
    end = "END"
    while f"\n{end}\n" in f"\n{text}\n":
        end += "_"
    return " \\\n  ".join([*lines, f"--data-binary @- <<'{end}'"]) + f"\n{text}\n{end}"


def _quoted(text: str, secret: str, variable: str) -> str:
    """Quoted for a shell, with `variable` instead of the secret."""
    pieces = printable(text).split(secret)
    if len(pieces) == 1:
        return shlex.quote(pieces[0])
    return f'"{variable}"'.join(shlex.quote(piece) if piece else "" for piece in pieces)


def _variable(header: str) -> str:
    """The shell variable for a secret header."""
    return "$" + re.sub(r"[^A-Za-z0-9]", "_", header).upper()
