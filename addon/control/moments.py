"""Points in time in queries."""

import datetime
from typing import Annotated

from pydantic import BeforeValidator, Field


def parse_moment(value: object) -> object:
    """The Unix time of an RFC 3339 text (UTC if it has no zone) or of a number. Raises ValueError."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        pass
    try:
        moment = datetime.datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("must be a time such as 2026-11-24T09:30:00Z, or a Unix time") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()


Moment = Annotated[float, BeforeValidator(parse_moment), Field(ge=0, le=253_402_300_799, allow_inf_nan=False)]
"""Seconds since 1970, at most to the year 9999."""
