"""What a check has found."""

from typing import Literal, NamedTuple

State = Literal["ok", "note", "unknown", "wrong"]
"""`note`: worth knowing, and right for some. `unknown`: the check could not be made."""


class Finding(NamedTuple):
    check: str
    state: State
    message: str
    fix: str = ""
