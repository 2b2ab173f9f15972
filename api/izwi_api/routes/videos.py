"""/v1/videos in OpenAI's format, jobs that are polled, and /v1/videos/generations, which waits."""

from __future__ import annotations

import asyncio
import os
import time
from base64 import b64encode
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import FileResponse, JSONResponse, Response

from izwi.errors import InvalidRequest, Overloaded, UnsupportedParameter
from izwi.fairness.queue import may_queue
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_form, read_json
from izwi_api.http.live_response import unless_left
from izwi_api.routes.image_results import RESULTS, result_files
from izwi_api.routes.openapi import answers, form_body, json_body
from izwi_api.schemas.videos import VideoBody, VideoGenerationBody, parse_video
from izwi_api.services.image_jobs import video_job_of
from izwi_api.services.video_runs import run_video
from izwi_api.settings import ImageModel, check_drawn_by
from izwi_api.usage.metering import key_name

if TYPE_CHECKING:
    from izwi_api.drawing.jobs import DrawJob
    from izwi_api.drawing.videos import Video, VideoStore

router = APIRouter()

# As many as the process that draws lets wait, and the one that it draws.
_MAX_OPEN = 9
_RETRY_AFTER_S = 10
# The event loop keeps no task alive by itself.
_runs: set[asyncio.Task[None]] = set()


@router.post(
    "/v1/videos", openapi_extra=form_body(VideoBody), responses=answers("application/json")
)
async def create_video(request: Request) -> dict[str, Any]:
    """Have a video drawn; it goes on when the caller leaves."""
    from izwi_api.drawing.videos import Video, new_video_id

    body = await _body(request)
    job = video_job_of(body)
    model, store = _served(request, body.model)
    if not may_queue(await asyncio.to_thread(store.num_open), key_name(), _MAX_OPEN):
        message = f"{_MAX_OPEN - 1} videos wait already; try again later"
        raise Overloaded(message, retry_after_s=_RETRY_AFTER_S)
    video = Video(
        id=new_video_id(),
        owner=key_name(),
        model=model.name,
        prompt=body.prompt,
        seconds=body.seconds,
        size=body.size,
        created_at=store.now_s(),
        pid=os.getpid(),
    )
    await asyncio.to_thread(store.add, video)
    shown = _shown(video)
    run = asyncio.create_task(run_video(model.socket, store, video, job))
    _runs.add(run)
    run.add_done_callback(_runs.discard)
    return shown


@router.get("/v1/videos")
async def list_videos(
    request: Request,
    after: Annotated[str | None, Query(max_length=128)] = None,
    limit: Annotated[int, Query(ge=0, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> dict[str, Any]:
    """List the caller's videos."""
    _, store = _served(request)
    found = await asyncio.to_thread(store.videos, key_name())
    if order == "asc":
        found.reverse()
    if after is not None:
        ids = [video.id for video in found]
        if after not in ids:
            raise InvalidRequest(f"there is no video {after[:64]!r}", param="after")
        found = found[ids.index(after) + 1 :]
    page = found[:limit]
    return {
        "object": "list",
        "data": [_shown(video) for video in page],
        "has_more": len(found) > limit,
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
    }


@router.get("/v1/videos/{video_id}")
async def get_video(request: Request, video_id: str) -> dict[str, Any]:
    """Return the state of a video."""
    _, store = _served(request)
    return _shown(await asyncio.to_thread(store.find, key_name(), video_id))


@router.delete("/v1/videos/{video_id}")
async def delete_video(request: Request, video_id: str) -> dict[str, Any]:
    """Delete a video; if it is being drawn, that ends after the current step."""
    _, store = _served(request)
    await asyncio.to_thread(store.delete, key_name(), video_id)
    return {"id": video_id, "object": "video.deleted", "deleted": True}


@router.get(
    "/v1/videos/{video_id}/content", response_class=Response, responses=answers("video/mp4")
)
async def video_content(
    request: Request, video_id: str, variant: Literal["video"] = "video"
) -> Response:
    """Return the file of a completed video."""
    del variant  # previews and sprites are not made
    _, store = _served(request)
    video = await asyncio.to_thread(store.find, key_name(), video_id)
    if video.status != "completed":
        raise InvalidRequest(f"the video is {video.status}", param="video_id")
    headers = {"cache-control": "no-store"}
    return FileResponse(store.content(video.id), media_type="video/mp4", headers=headers)


@router.post(
    "/v1/videos/generations",
    openapi_extra=json_body(VideoGenerationBody, {}),
    response_class=Response,
    responses=answers("application/json"),
)
async def generate_video(request: Request) -> Response:
    """Draw a video, and answer with it."""
    limit_bytes = services_of(request).settings.max_json_bytes
    body = VideoGenerationBody.model_validate(await read_json(request, limit_bytes))
    job = video_job_of(body)
    model, _ = _served(request, body.model)
    return await unless_left(request.receive, _drawn(request, model, body, job))


async def _drawn(
    request: Request, model: ImageModel, body: VideoGenerationBody, job: DrawJob
) -> Response:
    from izwi_api.drawing.client import draw

    (video,) = await draw(model.socket, job)
    if body.response_format == "url":
        name = await asyncio.to_thread(result_files(model).add, video.content, "mp4")
        entry = {"url": f"{str(request.base_url).rstrip('/')}{RESULTS}{name}"}
    else:
        entry = {"b64_json": b64encode(video.content).decode("ascii")}
    size = f"{video.width}x{video.height}"
    return JSONResponse({"created": int(time.time()), "size": size, "data": [entry]})


async def _body(request: Request) -> VideoBody:
    """Read a form, as OpenAI's client sends, or JSON."""
    limit_bytes = services_of(request).settings.max_json_bytes
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return VideoBody.model_validate(await read_json(request, limit_bytes))
    form = await read_form(request, limit_bytes, "input_reference")
    if form.files:
        name = min(form.files)[:64]
        raise UnsupportedParameter(f"videos are drawn by a prompt, not by {name!r}", param=name)
    return parse_video(form)


def _served(request: Request, name: str | None = None) -> tuple[ImageModel, VideoStore]:
    """Return the model, and where its videos are. Raises ModelNotFound."""
    served = check_drawn_by(services_of(request).settings.video_model, name, "videos")
    return served, _store(served.socket.parent / "videos")


@lru_cache(maxsize=8)
def _store(folder: Path) -> VideoStore:
    """Return the store of a folder, which remembers what it has read."""
    from izwi_api.drawing.videos import VideoStore

    return VideoStore(folder)


def _shown(video: Video) -> dict[str, Any]:
    """Return a video as OpenAI shows it."""
    code, message = video.error or ("", "")
    return {
        "id": video.id,
        "object": "video",
        "model": video.model,
        "prompt": video.prompt,
        "seconds": video.seconds,
        "size": video.size,
        "status": video.status,
        "progress": video.progress,
        "created_at": video.created_at,
        "completed_at": video.completed_at,
        "expires_at": video.expires_at,
        "error": {"code": code, "message": message} if video.error else None,
        "remixed_from_video_id": None,
    }
