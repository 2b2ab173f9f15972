"""Jobs for the process that draws, from what a caller asks."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from izwi.fairness.callers import current_caller
from izwi_api.schemas.images import ImagesBody, compression_of, read_size, size_of
from izwi_api.schemas.videos import VideoBody

if TYPE_CHECKING:
    from izwi_api.drawing.jobs import DrawJob

# The steps of each quality, in those that the model takes by itself.
EFFORTS = {"low": 0.5, "auto": 1.0, "medium": 1.0, "standard": 1.0, "high": 2.0, "hd": 2.0}
_SEED_BITS = 32


def job_of(body: ImagesBody) -> DrawJob:
    """Return what a body asks for. Raises InvalidRequest."""
    from izwi_api.drawing.jobs import DrawJob  # only here: most servers draw nothing

    return DrawJob(
        prompt=body.prompt,
        size=size_of(body),
        count=body.n,
        steps=body.steps,
        effort=EFFORTS[body.quality],
        seed=_seed(body.seed),
        file_format=body.output_format,
        compression=compression_of(body),
        num_partials=body.partial_images,
        caller=current_caller.get(),
    )


def video_job_of(body: VideoBody) -> DrawJob:
    """Return what a body asks for. Raises InvalidValue."""
    from izwi_api.drawing.jobs import DrawJob

    return DrawJob(
        prompt=body.prompt,
        size=None if body.size == "auto" else read_size(body.size),
        steps=body.steps,
        seed=_seed(body.seed),
        seconds=int(body.seconds),
        frames_per_s=body.frames_per_s,
        caller=current_caller.get(),
    )


def _seed(given: int | None) -> int:
    return secrets.randbits(_SEED_BITS) if given is None else given
