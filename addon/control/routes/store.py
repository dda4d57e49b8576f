"""The store itself: what somebody has to decide about it."""

from pydantic import BaseModel, Field
from starlette.responses import Response

from addon.web.describe import answers, group
from addon.web.routing import ApiDep, reply

router = group("store")


class Trusted(BaseModel):
    doubt: str = Field(description="Why nothing expired until now; empty: the clock was trusted already.")


@router.post(
    "/v1/store/trust-clock",
    summary="Say that the clock is right, so that old records expire again",
    responses=answers({"doubt": "the clock went 192.0 h ahead compared with the machine's uptime"}, Trusted),
)
async def trust_clock(api: ApiDep) -> Response:
    """Nothing expires after the clock made a step of more than an hour against the machine's uptime, or against what
    the store noted last, until somebody says that it is right."""
    doubt = await api.store.trust_clock()
    await api.store.sync()
    return reply({"doubt": doubt})
