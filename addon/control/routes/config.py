"""The proxy's settings, with their sources."""

from pydantic import BaseModel, Field
from starlette.responses import Response

from addon.web.api import ApiDep, answers, reply, routes_of

router = routes_of("config")


class Setting(BaseModel):
    name: str
    value: str = Field(description="Secrets are masked. Items of a list are separated by commas.")
    source: str = Field(
        description="Where it is set: `default`, `command line`, `config.yaml`, an environment variable, a file with "
        "its line, or `changed while it runs`."
    )


class SettingList(BaseModel):
    items: list[Setting]


_EXAMPLE = {"name": "graft_max_rounds", "value": "5", "source": "/home/me/.config/toolgraft/toolgraft.toml"}


@router.get(
    "/v1/config",
    summary="List the proxy's settings, and where each is set",
    responses=answers({"items": [_EXAMPLE]}, SettingList),
)
async def list_settings(api: ApiDep) -> Response:
    """Every option, in the order of its documentation. Sessions may have different settings."""
    return reply({"items": list(api.setting_rows())})
