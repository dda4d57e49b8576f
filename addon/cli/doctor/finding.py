"""The result of a check."""

from typing import Literal, NamedTuple

State = Literal["ok", "note", "unknown", "wrong"]
"""`note`: possibly intended. `unknown`: the check could not be made."""


class Finding(NamedTuple):
    check: str
    state: State
    message: str
    fix: str = ""
