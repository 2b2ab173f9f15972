"""POST /v1/images/generations: images by a prompt, in OpenAI's format."""

from __future__ import annotations

import secrets
import time
from base64 import b64encode
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from izwi.errors import ModelNotFound
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_json
from izwi_api.http.live_response import unless_left
from izwi_api.routes.openapi import answers, json_body
from izwi_api.schemas.images import ImagesBody, compression_of, size_of
from izwi_api.settings import ImageModel

router = APIRouter()

# The steps of each quality, in those that the model takes by itself.
EFFORTS = {"low": 0.5, "auto": 1.0, "medium": 1.0, "standard": 1.0, "high": 2.0, "hd": 2.0}
_SEED_BITS = 32


@router.post(
    "/v1/images/generations",
    openapi_extra=json_body(ImagesBody, {}),
    response_class=Response,
    responses=answers("application/json"),
)
async def generate_images(request: Request) -> Response:
    """Draw images."""
    settings = services_of(request).settings
    body = ImagesBody.model_validate(await read_json(request, settings.max_json_bytes))
    model = _model(settings.image_model, body.model)
    return await unless_left(request.receive, _draw(model, body))


def _model(served: ImageModel | None, name: str | None) -> ImageModel:
    if served is None:
        message = "this server draws no images: it was started without --images"
        raise ModelNotFound(message, param="model")
    if name not in (None, served.name):
        raise ModelNotFound(
            f"no model that draws is called {name!r}; it is {served.name!r}", param="model"
        )
    return served


async def _draw(model: ImageModel, body: ImagesBody) -> Response:
    from izwi_api.drawing.client import draw  # only here: most servers draw nothing
    from izwi_api.drawing.jobs import DrawJob

    job = DrawJob(
        prompt=body.prompt,
        size=size_of(body),
        count=body.n,
        steps=body.steps,
        effort=EFFORTS[body.quality],
        seed=secrets.randbits(_SEED_BITS) if body.seed is None else body.seed,
        file_format=body.output_format,
        compression=compression_of(body),
    )
    images = await draw(model.socket, job)
    answer: dict[str, Any] = {
        "created": int(time.time()),
        "background": "opaque",
        "output_format": body.output_format,
        "size": f"{images[0].width}x{images[0].height}",
        "data": [{"b64_json": b64encode(image.content).decode("ascii")} for image in images],
    }
    return JSONResponse(answer)
