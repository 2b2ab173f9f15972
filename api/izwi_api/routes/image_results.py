"""GET /v1/images/results/{name}: what was drawn in the last hour, by address."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response

from izwi.errors import FileNotStored
from izwi_api.http.app_state import services_of
from izwi_api.routes.openapi import answers
from izwi_api.settings import ImageModel

if TYPE_CHECKING:
    from izwi_api.drawing.results import ResultFiles

router = APIRouter()

# Whoever has the name of a file may read it: a browser sends no key for an image in a page.
RESULTS = "/v1/images/results/"


@router.get(RESULTS + "{name}", response_class=Response, responses=answers("image/*", "video/mp4"))
async def image_result(request: Request, name: str) -> Response:
    """Return an image or a video that was drawn in the last hour."""
    settings = services_of(request).settings
    for served in (settings.image_model, settings.video_model):
        path = None if served is None else await asyncio.to_thread(result_files(served).find, name)
        if path is not None:
            return FileResponse(path, headers={"cache-control": "private, max-age=3600"})
    raise FileNotStored("there is no such image, or no longer", param="name")


def result_files(model: ImageModel) -> ResultFiles:
    """Return where the results of a model are, for all API servers."""
    from izwi_api.drawing.results import ResultFiles

    return ResultFiles(model.socket.parent / "results")
