"""A pipeline of diffusers that runs jobs. Imported by the process that draws alone."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from io import BytesIO
from typing import Any

import torch
from diffusers import (
    AutoPipelineForImage2Image,
    AutoPipelineForInpainting,
    DiffusionPipeline,
)
from PIL import Image

from izwi.errors import CheckpointError, DeviceFull, InvalidValue, UnsupportedParameter
from izwi_api.drawing.jobs import DrawJob, Drawn, Partial, Picture, Report, Step
from izwi_api.drawing.options import PipelineOptions
from izwi_api.drawing.previews import can_preview, preview, preview_steps

logger = logging.getLogger(__name__)

# Of videos whose pipeline does not say: that of Wan.
_FRAMES_PER_S = 16
# What torch says if a CPU has no memory, for which it has no error of its own.
_NO_MEMORY = ("not enough memory", "can't allocate memory", "std::bad_alloc")


class _ClientLeft(Exception):
    """Ends a pipeline between two steps."""


class Pipeline:
    """Draws with a pipeline, which is loaded for the first job.

    Args:
        options: What is loaded, and how.
    """

    def __init__(self, options: PipelineOptions):
        self._options = options
        self.device = _chosen(options.device)
        self._loaded: Any = None
        # that draws, changes a picture, or changes a part of one: they share their weights
        self._by_task: dict[str, Any] = {}
        if options.memory_bytes and self.device.startswith("cuda"):
            _, total = torch.cuda.mem_get_info(self.device)
            share = min(1.0, options.memory_bytes / total)
            torch.cuda.set_per_process_memory_fraction(share, self.device)

    def run(self, job: DrawJob, report: Report, has_left: Callable[[], bool]) -> None:
        """Draw a job's images. See `RunsJobs.run`."""
        try:
            pipeline = self._pipeline_for(job)
            for place in range(job.count):
                _Drawing(pipeline, job, place, report, has_left).run()
        except _ClientLeft:
            return
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            raise DeviceFull("the device has too little memory for this image") from error

    def _pipeline_for(self, job: DrawJob) -> Any:
        """Return the pipeline for a job's task. Raises CheckpointError, UnsupportedParameter."""
        if self._loaded is None:
            self._loaded = self._load()
        task = "mask" if job.mask else "image" if job.picture else "prompt"
        if task not in self._by_task:
            self._by_task[task] = _of_task(self._loaded, task)
        return self._by_task[task]

    def _load(self) -> Any:
        folder, options = self._options.folder, self._options
        # bfloat16 is slow on CPUs
        dtype = torch.float32 if self.device == "cpu" else torch.bfloat16
        logger.info("loading %s on %s", folder, self.device)
        try:
            pipeline = DiffusionPipeline.from_pretrained(
                folder, dtype=dtype, local_files_only=True, use_safetensors=True
            )
        except (OSError, ValueError, AttributeError, ImportError) as error:
            raise CheckpointError(f"{folder}: {error}") from error
        if "prompt" not in inspect.signature(pipeline.__call__).parameters:
            raise CheckpointError(f"{type(pipeline).__name__} draws no images by a prompt")
        pipeline.set_progress_bar_config(disable=True)
        denoiser = getattr(pipeline, "transformer", None) or getattr(pipeline, "unet", None)
        if options.attention is not None:
            _set_attention(denoiser, options.attention)
        if options.compiles and denoiser is not None:
            denoiser.compile()
        if options.offloads and self.device != "cpu":
            pipeline.enable_model_cpu_offload(device=self.device)
            return pipeline
        return pipeline.to(self.device)


class _Drawing:
    """Draws one image of a job.

    Args:
        pipeline: That of the job's task.
        job: The job.
        place: Which of its images.
        report: See `RunsJobs.run`.
        has_left: See `RunsJobs.run`.
    """

    def __init__(
        self,
        pipeline: Any,
        job: DrawJob,
        place: int,
        report: Report,
        has_left: Callable[[], bool],
    ):
        self._pipeline, self._job, self._place = pipeline, job, place
        self._report, self._has_left = report, has_left
        self._parameters = inspect.signature(pipeline.__call__).parameters
        self._previews: dict[int, int] | None = None
        self._has_begun = False

    def run(self) -> None:
        """Draw and report it. Raises _ClientLeft, InvalidValue, UnsupportedParameter."""
        arguments = self._arguments()
        if self._has_left():
            raise _ClientLeft
        try:
            output = self._pipeline(**arguments)
        except ValueError as error:
            if self._has_begun:
                raise
            raise InvalidValue(f"this model refuses the request: {error}") from error
        if self._job.seconds is None:
            image: Image.Image = output.images[0]
            content = _file_of(image, self._job)
        else:
            from izwi_api.drawing.mp4 import mp4_of  # only here: most pipelines draw images

            frames = output.frames[0]
            image, content = frames[0], mp4_of(frames, self._frames_per_s())
        num_text_tokens = _num_text_tokens(self._pipeline, self._job.prompt)
        self._report(Drawn(content, image.width, image.height, num_text_tokens))

    def _arguments(self) -> dict[str, Any]:
        job, takes = self._job, self._parameters
        arguments: dict[str, Any] = {
            "prompt": job.prompt,
            # the same noise on every device
            "generator": torch.Generator("cpu").manual_seed(job.seed + self._place),
            "num_inference_steps": self._num_steps(),
        }
        size = job.size
        if job.picture is not None:
            shown = _image_of(job.picture, size)
            arguments["image"], size = shown, shown.size
        if job.mask is not None:
            arguments["mask_image"] = _image_of(job.mask, size).convert("L")
        if job.strength is not None:
            arguments["strength"] = job.strength
        if size is not None and (job.picture is None or {"width", "height"} <= takes.keys()):
            arguments["width"], arguments["height"] = size
        if job.seconds is not None:
            arguments["num_frames"] = self._num_frames(job.seconds)
            arguments["output_type"] = "pil"
            if "frame_rate" in takes:
                arguments["frame_rate"] = self._frames_per_s()
        if "callback_on_step_end" in takes:
            arguments["callback_on_step_end"] = self._after_step
        if unknown := arguments.keys() - takes.keys():
            name = "size" if unknown & {"width", "height"} else min(unknown)
            if name == "num_frames":
                raise CheckpointError(f"{type(self._pipeline).__name__} draws no videos")
            raise UnsupportedParameter(f"this model takes no {name}", param=name)
        can_show = "callback_on_step_end" in takes and can_preview(self._pipeline)
        if job.num_partials and not can_show:
            raise UnsupportedParameter("this model has no partial images", param="partial_images")
        return arguments

    def _after_step(self, pipeline: Any, step: int, _: Any, kept: dict[str, Any]) -> dict[str, Any]:
        self._has_begun = True
        if self._has_left():
            raise _ClientLeft
        # a changed picture takes fewer steps than were asked for
        steps = getattr(pipeline, "num_timesteps", None) or self._num_steps()
        self._report(Step(self._place * steps + step + 1, self._job.count * steps))
        if self._previews is None:
            self._previews = preview_steps(self._job.num_partials, steps)
        if (number := self._previews.get(step + 1)) is not None:
            width, height = self._size(kept["latents"])
            image = preview(pipeline, kept["latents"], width, height)
            if image is not None:
                content = _file_of(image, self._job)
                self._report(Partial(content, image.width, image.height, number))
        return kept

    def _size(self, latents: Any) -> tuple[int, int]:
        """Return width and height of the image, which packed latents do not tell."""
        if self._job.size is not None:
            return self._job.size
        if self._job.picture is not None:
            return self._job.picture.width, self._job.picture.height
        side = getattr(self._pipeline, "default_sample_size", 0) * getattr(
            self._pipeline, "vae_scale_factor", 1
        )
        if latents.ndim == 3 and not side:
            raise UnsupportedParameter(
                "partial images of this model need a size", param="partial_images"
            )
        return side, side

    def _frames_per_s(self) -> int:
        if self._job.frames_per_s is not None:
            return self._job.frames_per_s
        own = self._parameters.get("frame_rate")
        return _FRAMES_PER_S if own is None else int(own.default)

    def _num_frames(self, seconds: int) -> int:
        """Return the frames of a video: the first, and as many as latents stand for."""
        names = ("vae_temporal_compression_ratio", "vae_scale_factor_temporal")
        ratio = max(getattr(self._pipeline, name, 1) for name in names)
        return ratio * max(1, round((seconds * self._frames_per_s() - 1) / ratio)) + 1

    def _num_steps(self) -> int:
        if self._job.steps is not None:
            return self._job.steps
        usual: int = self._parameters["num_inference_steps"].default
        return max(1, round(usual * self._job.effort))


def _of_task(pipeline: Any, task: str) -> Any:
    """Return a pipeline for a task that shares its weights. Raises UnsupportedParameter."""
    takes = inspect.signature(pipeline.__call__).parameters
    needed = {"prompt": "prompt", "image": "image", "mask": "mask_image"}[task]
    if needed in takes:
        return pipeline
    kinds = {"image": AutoPipelineForImage2Image, "mask": AutoPipelineForInpainting}
    try:
        other = kinds[task].from_pipe(pipeline)
    except (KeyError, ValueError) as error:
        what = "a mask" if task == "mask" else "an image to change"
        raise UnsupportedParameter(f"this model takes no {what}", param=task) from error
    other.set_progress_bar_config(disable=True)
    return other


def _num_text_tokens(pipeline: Any, prompt: str) -> int:
    """Return the tokens of a prompt by the pipeline's first tokenizer."""
    tokenizer = getattr(pipeline, "tokenizer", None)
    return 0 if tokenizer is None else len(tokenizer(prompt)["input_ids"])


def _set_attention(denoiser: Any, name: str) -> None:
    """Choose the attention. Raises InvalidValue if it is unknown or not installed."""
    try:
        denoiser.set_attention_backend(name)
    except (AttributeError, ValueError, RuntimeError, ImportError) as error:
        raise InvalidValue(f"attention backend {name!r}: {error}", param="attention") from error


def _chosen(device: str) -> str:
    if device not in ("auto", "mlx"):
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(words in str(error) for words in _NO_MEMORY)


def _image_of(picture: Picture, size: tuple[int, int] | None) -> Image.Image:
    image = Image.frombytes("RGB", (picture.width, picture.height), picture.pixels)
    return image if size in (None, image.size) else image.resize(size, Image.Resampling.LANCZOS)


def _file_of(image: Image.Image, job: DrawJob) -> bytes:
    file = BytesIO()
    options = {} if job.file_format == "png" else {"quality": job.compression}
    image.convert("RGB").save(file, job.file_format, **options)
    return file.getvalue()
