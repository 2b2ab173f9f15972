"""GET /livez: the process answers. GET /readyz: it can take work."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from izwi_api.app_state import door_of

router = APIRouter()


@router.get("/livez")
async def livez() -> dict[str, str]:
    """Answer as long as the event loop turns."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(request: Request) -> JSONResponse:
    """Answer 200 while the engine runs and serves at least one model, else 503."""
    door = door_of(request)
    names = door.registry.names()
    ready = door.engine.alive and bool(names)
    return JSONResponse(
        {"status": "ok" if ready else "unavailable", "models": names}, 200 if ready else 503
    )
