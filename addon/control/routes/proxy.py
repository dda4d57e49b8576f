"""The proxy itself: health checks, metrics, and its settings with their sources."""

import logging

from pydantic import BaseModel, Field
from starlette.responses import Response

from addon.control.views import Health
from addon.core.framing.replies import PROXY_ENDING
from addon.monitoring import metrics
from addon.web.access import needs
from addon.web.api import ApiDep, answers, reply, routes_of
from addon.web.problems import Problem
from store.base import StoreUnavailable

router = routes_of("health")
public = routes_of("health", is_public=True)

_log = logging.getLogger(__name__)


_OK = {"status": "ok", "version": "0.1.0"}


@public.get("/healthz/live", summary="Whether the proxy runs", responses=answers(_OK, Health))
async def live(api: ApiDep) -> Response:
    """If this path answers, a restart does not help. `/healthz` says whether the proxy can be used."""
    return reply({"status": "ok", "version": api.version})


@public.get(
    "/healthz",
    summary="Whether the proxy can be used: something was written to the store just now",
    responses=answers(_OK, Health, p503="The store cannot be written to, or the proxy is ending"),
)
async def ready(api: ApiDep) -> Response:
    """Fails if the proxy is ending, if writes would be lost (no space, a deleted or replaced file), or if the store
    is damaged. The log gives the reason."""
    if api.ending.is_set():
        raise Problem(503, PROXY_ENDING, version=api.version)
    try:
        await api.store.ping()
    except StoreUnavailable as error:
        _log.warning("not ready: %s", error)  # the answer needs no token, so it says less
        raise Problem(503, "the store does not answer", version=api.version) from None
    return reply({"status": "ok", "version": api.version})


@router.get(
    "/metrics",
    summary="Counters for Prometheus",
    response_class=Response,
    responses=answers(
        'toolgraft_requests_total{operation="generateContent",surface="developer"} 7.0\n', media_type="text/plain"
    ),
)
@needs("read")
async def show_metrics(api: ApiDep) -> Response:
    """The metrics of this process since its start."""
    return Response(api.metrics.render(), headers={"content-type": metrics.CONTENT_TYPE})


settings = routes_of("config")


class Setting(BaseModel):
    name: str
    value: str = Field(description="Secrets are masked. Items of a list are separated by commas.")
    source: str = Field(
        description="Where it is set: `default`, `command line`, `config.yaml`, an environment variable, a file with "
        "its line, or `changed while it runs`."
    )


class SettingList(BaseModel):
    items: list[Setting]


_SETTING = {"name": "graft_max_rounds", "value": "5", "source": "/home/me/.config/toolgraft/toolgraft.toml"}


@settings.get(
    "/v1/config",
    summary="List the proxy's settings, and where each is set",
    responses=answers({"items": [_SETTING]}, SettingList),
)
async def list_settings(api: ApiDep) -> Response:
    """Every option, in the order of its documentation. Sessions may have different settings."""
    return reply({"items": list(api.setting_rows())})
