"""GET /v1/models and /v1/models/{id}: what is served."""

from __future__ import annotations

from fastapi import APIRouter, Request

from izwi_api.app_state import state_of

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, object]:
    """List the models."""
    state = state_of(request)
    entries = [_entry(request, name) for name in state.door.registry.names()]
    return {"object": "list", "data": entries}


@router.get("/v1/audio/models")
async def list_audio_models(request: Request) -> dict[str, object]:
    """List the models for open-webui, which asks here first."""
    return {"models": [{"id": name} for name in state_of(request).door.registry.names()]}


@router.get("/v1/models/{model_id:path}")
async def get_model(request: Request, model_id: str) -> dict[str, object]:
    """Describe a model; its name may hold slashes, plain or percent-encoded."""
    return _entry(request, model_id)


def _entry(request: Request, name: str) -> dict[str, object]:
    state = state_of(request)
    return {
        "id": name,
        "object": "model",
        "created": state.started_at,
        "owned_by": "izwi",
        "task": state.door.registry.model(name).task.value,
    }
