"""GET /metrics: metrics in Prometheus' text format, or OpenMetrics', which has exemplars."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.exposition import choose_encoder
from starlette.responses import Response

from izwi_api.http.app_state import state_of
from izwi_api.routes.openapi import answers

router = APIRouter()


@router.get("/metrics", response_class=Response, responses=answers(CONTENT_TYPE_LATEST))
async def metrics(request: Request) -> Response:
    """Return all metrics."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(state_of(request).metrics.registry), media_type=content_type)
