"""Decisions about the store itself."""

from pydantic import BaseModel, Field
from starlette.responses import Response

from addon.web.api import ApiDep, answers, reply, routes_of

router = routes_of("store")


class Trusted(BaseModel):
    doubt: str = Field(description="Why nothing expired until now; empty: the clock was already trusted.")


@router.post(
    "/v1/store/trust-clock",
    summary="Say that the clock is right, so that old records expire again",
    responses=answers({"doubt": "the clock went 192.0 h ahead compared with the machine's uptime"}, Trusted),
)
async def trust_clock(api: ApiDep) -> Response:
    """If the clock jumps by more than an hour, compared with the machine's uptime or with the store's last note,
    nothing expires until somebody confirms that the clock is right."""
    doubt = await api.store.trust_clock()
    await api.store.sync()
    return reply({"doubt": doubt})
