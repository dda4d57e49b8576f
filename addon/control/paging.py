"""The part of a query that every list understands."""

from pydantic import BaseModel, ConfigDict, Field


class PageQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    limit: int = Field(100, ge=1, le=1000, description="At most this many items.")
    cursor: str | None = Field(None, description="`next_cursor` of the page before.")
