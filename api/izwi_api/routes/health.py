"""GET /livez: the process responds. GET /readyz: it accepts work."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from izwi.engine_client.protocol import replicas_of
from izwi_api.http.app_state import state_of

router = APIRouter()


@router.get("/livez")
async def livez() -> dict[str, str]:
    """Respond as long as the event loop runs."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(request: Request) -> JSONResponse:
    """Return 200 while the engine runs, serves a model and accepts requests, else 503.

    With several engines, `replicas` says whether each of them gets requests, and `circuits` for
    which models it gets none, because they keep failing there.
    """
    state = state_of(request)
    names = state.services.registry.names()
    found: dict[str, object] = {"models": names}
    if replicas := replicas_of(state.services.engine):
        found["replicas"] = [
            {"replica": one.replica, "status": one.status.value}
            | ({"circuits": dict(one.circuits)} if one.circuits else {})
            for one in replicas
        ]
    if state.drain.is_begun:
        return JSONResponse({"status": "draining", **found}, 503)
    if not (state.services.engine.alive and names):
        return JSONResponse({"status": "unavailable", **found}, 503)
    return JSONResponse({"status": "ok", **found})
