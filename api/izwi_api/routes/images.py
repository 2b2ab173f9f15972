"""POST /v1/images/generations and /v1/images/edits, in OpenAI's format."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from msgspec.structs import replace
from starlette.responses import JSONResponse, Response

from izwi.errors import (
    InvalidRequest,
    InvalidValue,
    IzwiError,
    UnsupportedParameter,
)
from izwi.inputs.images import ImageSizing
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_form, read_json
from izwi_api.http.errors import error_line
from izwi_api.http.live_response import live_response, unless_left
from izwi_api.http.sse import MEDIA_TYPE, comment, event
from izwi_api.routes.image_results import RESULTS, result_files
from izwi_api.routes.openapi import answers, form_body, json_body
from izwi_api.schemas.form import Form
from izwi_api.schemas.images import (
    MAX_PIXELS,
    SIDE_STEP,
    EditForm,
    ImagesBody,
    check_stream,
    parse_edit,
)
from izwi_api.services.image_jobs import job_of
from izwi_api.services.images import ImageDecoder
from izwi_api.settings import ImageModel, check_drawn_by

if TYPE_CHECKING:
    from izwi_api.drawing.jobs import DrawJob, Drawn, Partial, Picture

router = APIRouter()

# Larger images are reduced, and sides become multiples.
_SIZING = ImageSizing(SIDE_STEP, SIDE_STEP * SIDE_STEP, MAX_PIXELS)


@router.post(
    "/v1/images/generations",
    openapi_extra=json_body(ImagesBody, {}),
    response_class=Response,
    responses=answers("application/json", MEDIA_TYPE),
)
async def generate_images(request: Request) -> Response:
    """Draw images."""
    settings = services_of(request).settings
    body = ImagesBody.model_validate(await read_json(request, settings.max_json_bytes))
    check_stream(body)
    model = check_drawn_by(settings.image_model, body.model)
    return await _answered(request, model, body, job_of(body), "image_generation")


@router.post(
    "/v1/images/edits",
    openapi_extra=form_body(EditForm, "image", optional=("mask",)),
    response_class=Response,
    responses=answers("application/json", MEDIA_TYPE),
)
async def edit_images(request: Request) -> Response:
    """Change an image: all of it, or where a mask is transparent."""
    services = services_of(request)
    limit_bytes = services.settings.max_upload_bytes
    form = await read_form(request, limit_bytes, "image", max_files=2)
    body = parse_edit(form)
    check_stream(body)
    model = check_drawn_by(services.settings.image_model, body.model)
    if unknown := form.files.keys() - {"image", "mask"}:
        name = min(unknown)[:64]
        raise UnsupportedParameter(f"unknown file {name!r}", param=name)
    job = replace(
        job_of(body),
        picture=await _picture(services.images, form, "image"),
        mask=await _picture(services.images, form, "mask") if "mask" in form.files else None,
        strength=body.strength,
    )
    sizes = [(one.width, one.height) for one in (job.picture, job.mask) if one is not None]
    if len(set(sizes)) > 1:
        raise InvalidValue("image and mask must have the same size", param="mask")
    return await _answered(request, model, body, job, "image_edit")


async def _picture(decoder: ImageDecoder, form: Form, name: str) -> Picture:
    """Decode a file of a form in a limited process. Raises InvalidImage, TooLarge."""
    from izwi_api.drawing.jobs import Picture

    try:
        pixels = await decoder.decode(form.pop_file(name), _SIZING, is_mask=name == "mask")
    except InvalidRequest as error:
        error.param = name
        raise
    height, width, _ = pixels.shape
    return Picture(width, height, pixels.tobytes())


async def _answered(
    request: Request, model: ImageModel, body: ImagesBody, job: DrawJob, kind: str
) -> Response:
    """Run a job, and answer with a stream or with all images."""
    if body.stream:
        answering = live_response(_events(model, body, job, kind), MEDIA_TYPE)
        return await unless_left(request.receive, answering)
    return await unless_left(request.receive, _draw(request, model, body, job))


async def _draw(request: Request, model: ImageModel, body: ImagesBody, job: DrawJob) -> Response:
    from izwi_api.drawing.client import draw

    images = await draw(model.socket, job)
    answer: dict[str, Any] = {
        "created": int(time.time()),
        "background": "opaque",
        "output_format": body.output_format,
        "size": f"{images[0].width}x{images[0].height}",
    }
    if body.response_format == "url":
        names = await asyncio.to_thread(_stored, model, images, body.output_format)
        base = str(request.base_url).rstrip("/")
        data = [{"url": f"{base}{RESULTS}{name}"} for name in names]
    else:
        data = [{"b64_json": _base64(image.content)} for image in images]
    return JSONResponse(answer | {"data": data, "usage": _usage(job, images)})


def _stored(model: ImageModel, images: list[Drawn], suffix: str) -> list[str]:
    """Keep images as files, and return their names."""
    files = result_files(model)
    return [files.add(image.content, suffix) for image in images]


async def _events(
    model: ImageModel, body: ImagesBody, job: DrawJob, kind: str
) -> AsyncGenerator[bytes]:
    """Yield previews and images, and a comment for each step."""
    from izwi_api.drawing.client import follow
    from izwi_api.drawing.jobs import Drawn, Partial, Step

    has_begun = False
    try:
        async with aclosing(follow(model.socket, job)) as progress:
            async for one in progress:
                has_begun = True
                if isinstance(one, Step):
                    yield comment(f"step {one.num_done} of {one.num_steps}")
                    continue
                ending = "partial_image" if isinstance(one, Partial) else "completed"
                fields = _event_fields(one, body, f"{kind}.{ending}")
                if isinstance(one, Drawn):
                    fields["usage"] = _usage(job, [one])
                yield event(fields, fields["type"])
    except IzwiError as error:
        # Before the first event the error can still be an HTTP status.
        if not has_begun:
            raise
        yield error_line(error)


def _event_fields(image: Drawn | Partial, body: ImagesBody, name: str) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "type": name,
        "b64_json": _base64(image.content),
        "created_at": int(time.time()),
        "background": "opaque",
        "output_format": body.output_format,
        "quality": body.quality,
        "size": f"{image.width}x{image.height}",
    }
    index = getattr(image, "index", None)
    return fields if index is None else fields | {"partial_image_index": index}


def _usage(job: DrawJob, images: Sequence[Drawn]) -> dict[str, Any]:
    """Return OpenAI's `usage`: tokens of the prompt, and one for each 16 x 16 pixels."""
    text = images[0].num_text_tokens
    shown = _image_tokens(job.picture) if job.picture is not None else 0
    drawn = sum(map(_image_tokens, images))
    return {
        "input_tokens": text + shown,
        "input_tokens_details": {"text_tokens": text, "image_tokens": shown},
        "output_tokens": drawn,
        "total_tokens": text + shown + drawn,
    }


def _image_tokens(image: Drawn | Picture) -> int:
    return (image.width // SIDE_STEP) * (image.height // SIDE_STEP)


def _base64(content: bytes) -> str:
    return b64encode(content).decode("ascii")
