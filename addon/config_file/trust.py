"""Which contents of a toolgraft.toml in a working folder the user trusts: `toolgraft trust` records their hash.

The file names programs that the proxy starts, so working in another person's folder must not be enough to run them.
"""

import hashlib
import json
from pathlib import Path

from addon.state_folder import check_folder, make_folder, state_folder, write_file


def trust(path: Path, content: bytes) -> None:
    """Trust only these contents of the file. Raises OSError, ValueError."""
    _write(_read() | {_name(path): _hash(content)})


def distrust(path: Path) -> bool:
    """Returns whether the file was trusted. Raises OSError, ValueError."""
    hashes = _read()
    found = hashes.pop(_name(path), None) is not None
    if found:
        _write(hashes)
    return found


def untrusted(path: Path, content: bytes) -> str | None:
    """Why these contents must not be used, or None if they are trusted. Raises OSError, ValueError."""
    known = _read().get(_name(path))
    if known == _hash(content):
        return None
    return "nobody has trusted it" if known is None else "it has changed since it was trusted"


def _name(path: Path) -> str:
    return str(path.resolve())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def trust_file() -> Path:
    return state_folder() / "trusted_configs.json"


def _read() -> dict[str, str]:
    file = trust_file()
    check_folder(file.parent)
    try:
        found: dict[str, str] = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except ValueError:
        raise ValueError(f"{file}: cannot be read; delete it, and trust your files anew") from None
    return found


def _write(hashes: dict[str, str]) -> None:
    file = trust_file()
    make_folder(file.parent)
    write_file(file, json.dumps(hashes, indent=2))
