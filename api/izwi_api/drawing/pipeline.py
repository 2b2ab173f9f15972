"""A pipeline of diffusers that runs jobs. Imported by the process that draws alone."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline
from PIL.Image import Image

from izwi.errors import CheckpointError, DeviceFull, InvalidValue, UnsupportedParameter
from izwi_api.drawing.jobs import DrawJob, Drawn, Report

logger = logging.getLogger(__name__)

# What torch says if a CPU has no memory, for which it has no error of its own.
_NO_MEMORY = ("not enough memory", "can't allocate memory")


class _ClientLeft(Exception):
    """Ends a pipeline between two steps."""


class Pipeline:
    """Draws with a pipeline, which is loaded for the first job.

    Args:
        folder: Has model_index.json, and weights as safetensors.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
    """

    def __init__(self, folder: Path, device: str):
        self._folder, self._device = folder, _chosen(device)
        self._pipeline: Any = None
        self._parameters: Mapping[str, inspect.Parameter] = {}

    def run(self, job: DrawJob, report: Report, has_left: Callable[[], bool]) -> None:
        """Draw a job's images. See `RunsJobs.run`."""
        try:
            self._load()
            for place in range(job.count):
                report(_file_of(self._draw(job, job.seed + place, has_left), job))
        except _ClientLeft:
            return
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            raise DeviceFull("the device has too little memory for this image") from error

    def _load(self) -> None:
        if self._pipeline is not None:
            return
        # bfloat16 is slow on CPUs
        dtype = torch.float32 if self._device == "cpu" else torch.bfloat16
        logger.info("loading %s on %s", self._folder.name, self._device)
        try:
            pipeline = DiffusionPipeline.from_pretrained(
                str(self._folder), dtype=dtype, local_files_only=True, use_safetensors=True
            )
        except (OSError, ValueError, AttributeError, ImportError) as error:
            raise CheckpointError(f"{self._folder}: {error}") from error
        self._parameters = inspect.signature(pipeline.__call__).parameters
        if "prompt" not in self._parameters:
            raise CheckpointError(f"{type(pipeline).__name__} draws no images by a prompt")
        pipeline.set_progress_bar_config(disable=True)
        self._pipeline = pipeline.to(self._device)

    def _draw(self, job: DrawJob, seed: int, has_left: Callable[[], bool]) -> Image:
        """Draw one image. Raises _ClientLeft, InvalidValue, UnsupportedParameter."""
        has_begun = False

        def after_step(_: Any, __: int, ___: Any, kept: dict[str, Any]) -> dict[str, Any]:
            nonlocal has_begun
            has_begun = True
            if has_left():
                raise _ClientLeft
            return kept

        arguments: dict[str, Any] = {
            "prompt": job.prompt,
            # the same noise on every device
            "generator": torch.Generator("cpu").manual_seed(seed),
            "num_inference_steps": self._num_steps(job),
        }
        if job.size is not None:
            arguments["width"], arguments["height"] = job.size
        if "callback_on_step_end" in self._parameters:
            arguments["callback_on_step_end"] = after_step
        if unknown := arguments.keys() - self._parameters.keys():
            name = "size" if unknown & {"width", "height"} else min(unknown)
            raise UnsupportedParameter(f"this model takes no {name}", param=name)
        if has_left():
            raise _ClientLeft
        try:
            image: Image = self._pipeline(**arguments).images[0]
        except ValueError as error:
            if has_begun:
                raise
            raise InvalidValue(f"this model refuses the request: {error}") from error
        return image

    def _num_steps(self, job: DrawJob) -> int:
        if job.steps is not None:
            return job.steps
        usual: int = self._parameters["num_inference_steps"].default
        return max(1, round(usual * job.effort))


def _chosen(device: str) -> str:
    if device != "auto":
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(words in str(error) for words in _NO_MEMORY)


def _file_of(image: Image, job: DrawJob) -> Drawn:
    file = BytesIO()
    options = {} if job.file_format == "png" else {"quality": job.compression}
    image.convert("RGB").save(file, job.file_format, **options)
    return Drawn(file.getvalue(), image.width, image.height)
