"""Whether the proxy is well, and what it has counted."""

from starlette.responses import Response

from addon import metrics
from addon.control.describe import PUBLIC, answers, group
from addon.control.problems import Problem
from addon.control.routing import Here, reply
from addon.control.views import Health
from store.base import StoreUnavailable

router = group("health")


@router.get(
    "/healthz",
    summary="Health, the store included",
    responses=answers({"status": "ok", "version": "0.1.0"}, Health, p503="The store does not answer"),
    openapi_extra=PUBLIC,
)
async def health(api: Here) -> Response:
    try:
        await api.store.ping()
    except StoreUnavailable:
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
async def show_metrics(api: Here) -> Response:
    return Response(api.metrics.render(), headers={"content-type": metrics.CONTENT_TYPE})
