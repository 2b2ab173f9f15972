"""GET /metrics: metrics in Prometheus' text format."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from izwi_api.http.app_state import state_of
from izwi_api.routes.openapi import answers

router = APIRouter()


@router.get("/metrics", response_class=Response, responses=answers(CONTENT_TYPE_LATEST))
async def metrics(request: Request) -> Response:
    """Return all metrics."""
    return Response(
        generate_latest(state_of(request).metrics.registry), media_type=CONTENT_TYPE_LATEST
    )
