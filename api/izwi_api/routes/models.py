"""GET /v1/models, GET and DELETE /v1/models/{id}, GET /v1/audio/models: the served models."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from izwi.engine_client.protocol import replicas_of
from izwi_api.http.app_state import state_of
from izwi_api.http.errors import error_body
from izwi_api.routes.realtime_calls import has_webrtc

router = APIRouter()

# Parts of the memory plan; see `izwi.metrics.FIGURES`.
_MEMORY = ("weight_bytes", "state_bytes", "graph_bytes", "shared_bytes")


@router.get("/v1/models/", include_in_schema=False)
@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, object]:
    """List the models, and what the server offers.

    `manageable` says whether callers may load, unload and pull models, `webrtc` whether live
    sessions may use WebRTC, `images` and `videos` the names of the models that draw, or null.
    """
    settings = state_of(request).services.settings
    image_model, video_model = settings.image_model, settings.video_model
    return {
        "object": "list",
        "data": [_entry(request, name) for name in _names(request)],
        "manageable": settings.manage_models,
        "webrtc": has_webrtc(),
        "images": None if image_model is None else image_model.name,
        "videos": None if video_model is None else video_model.name,
    }


@router.get("/v1/audio/models")
async def list_audio_models(request: Request) -> dict[str, object]:
    """List the models at the path that open-webui queries first."""
    return {"models": [{"id": name} for name in _names(request)]}


@router.get("/v1/models/{model_id:path}")
async def get_model(request: Request, model_id: str) -> dict[str, object]:
    """Describe a model; its name may contain slashes, plain or percent-encoded."""
    return _entry(request, model_id)


@router.delete("/v1/models/{model_id:path}")
async def delete_model(request: Request, model_id: str) -> JSONResponse:
    """Refuse: the served models are chosen when the server is started."""
    state_of(request).services.registry.model(model_id)
    body = error_body(
        f"model {model_id!r} cannot be deleted over HTTP; start the server without it",
        "invalid_request_error",
        param="model",
        code="permission_denied",
    )
    return JSONResponse(body, 403)


def _names(request: Request) -> list[str]:
    """Return the names of the models, then their aliases."""
    state = state_of(request)
    return [*state.services.registry.names(), *state.services.registry.aliases()]


def _entry(request: Request, name: str) -> dict[str, object]:
    """Describe a model by name or alias.

    `root` is its name, `task` its main purpose, `languages` the names of those that it speaks or
    understands; empty if it does not list them. With several engines, `replicas` has the memory of
    each. An adapter has its model as `parent`, and the memory of that. A model that izwi's own
    loop does not run has a `runner`.
    """
    state = state_of(request)
    model = state.services.registry.model(name)
    engine = state.services.engine
    base = model.name if model.adapter is None else model.adapter.model
    replicas = [
        {
            "replica": one.replica,
            "status": one.status.value,
            "memory": _memory(one.load.get(base, {})),
        }
        for one in replicas_of(engine)
        if base in one.load or not one.load
    ]
    able = [capability.value for capability in model.frontend.capabilities]
    entry: dict[str, object] = {
        "id": name,
        "object": "model",
        "created": state.started_at,
        "owned_by": "izwi",
        "root": model.name,
        "task": able[0],
        "capabilities": able,
        "languages": list(getattr(model.frontend, "languages", ())),
        "memory": _memory(engine.load.get(base, {})),
    }
    if replicas:
        entry["replicas"] = replicas
    if (runner := getattr(model.frontend, "runner", None)) is not None:
        entry["runner"] = runner
    if model.adapter is not None:
        entry["parent"] = base
    return entry


def _memory(figures: Mapping[str, float]) -> dict[str, int]:
    """Return the parts of the memory plan that the figures of a model have, in bytes."""
    parts = {part: int(figures[part]) for part in _MEMORY if part in figures}
    return parts | {"kv_bytes": int(figures.get("pages", 0) * figures.get("page_bytes", 0))}
