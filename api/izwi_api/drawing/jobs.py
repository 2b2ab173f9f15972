"""Jobs for the process that draws, and what it answers: frames over a Unix socket.

A connection has one job. The client sends it and reads events until the last, `Ended` or
`Refused`; to cancel, it closes the connection. A frame is its length in 4 bytes (little-endian) and
MessagePack.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec import Struct

from izwi.errors import (
    CheckpointError,
    DeviceFull,
    EngineStopped,
    InvalidRequest,
    InvalidValue,
    IzwiError,
    Overloaded,
    UnsupportedParameter,
)

_LENGTH_BYTES = 4
_ERRORS: dict[str, type[IzwiError]] = {
    error.code: error
    for error in (
        *(CheckpointError, DeviceFull, EngineStopped, InvalidRequest, InvalidValue),
        *(Overloaded, UnsupportedParameter),
    )
}


class Picture(Struct, frozen=True):
    """Pixels: RGB in 8 bits, row by row."""

    width: int
    height: int
    pixels: bytes


class DrawJob(Struct, tag=True, frozen=True, kw_only=True):
    """Images to draw.

    Attributes:
        prompt: What to draw.
        size: Width and height in pixels; None for the pipeline's own.
        count: Number of images, drawn one after the other, with seeds that count up.
        steps: Number of steps; None for the pipeline's own.
        effort: Multiplies the pipeline's own number of steps.
        seed: The first image's seed, at least 0.
        file_format: "png", "jpeg" or "webp".
        compression: Quality of jpeg and webp, 0 to 100.
        num_partials: Number of previews of each image, which are sent while it is drawn.
        picture: What to change, instead of drawing from nothing.
        mask: Where to change it: white; of the picture's size.
        strength: How much of the picture is lost, 0 to 1; None for the pipeline's own.
        seconds: Length of a video, which is drawn instead of images; its file is MP4.
        frames_per_s: Of a video; None for the pipeline's own.
        caller: Who asked; see `izwi.fairness.callers`.
    """

    prompt: str
    size: tuple[int, int] | None = None
    count: int = 1
    steps: int | None = None
    effort: float = 1.0
    seed: int = 0
    file_format: str = "png"
    compression: int = 100
    num_partials: int = 0
    picture: Picture | None = None
    mask: Picture | None = None
    strength: float | None = None
    seconds: int | None = None
    frames_per_s: int | None = None
    caller: str = ""


class Drawn(Struct, tag=True, frozen=True):
    """A finished image or video: a file in the job's format, and its size in pixels.

    Attributes:
        num_text_tokens: Of the prompt, as the pipeline reads it; 0 if it does not say.
    """

    content: bytes
    width: int
    height: int
    num_text_tokens: int = 0


class Partial(Struct, tag=True, frozen=True):
    """A preview of an image that is being drawn: as `Drawn`, and its number, from 0."""

    content: bytes
    width: int
    height: int
    index: int


class Step(Struct, tag=True, frozen=True):
    """A step has ended.

    Attributes:
        num_done: Steps of the job that have ended.
        num_steps: All steps of the job.
    """

    num_done: int
    num_steps: int


class Begun(Struct, tag=True, frozen=True):
    """The job runs from now on: until then another process may be asked for it."""


class Ended(Struct, tag=True, frozen=True):
    """All images were sent."""


class Refused(Struct, tag=True, frozen=True):
    """The job failed, with an error of the tree by its code."""

    code: str
    message: str
    param: str | None = None
    retry_after_s: int = 1


Progress = Drawn | Partial | Step
Event = Progress | Begun | Ended | Refused
Report = Callable[[Progress], None]


class RunsJobs(Protocol):
    """Runs jobs, one at a time, in a thread."""

    def run(self, job: DrawJob, report: Report, has_left: Callable[[], bool]) -> None:
        """Run a job.

        Args:
            job: The job.
            report: Takes each image, preview and step as it ends.
            has_left: Whether the client has left; the job then ends after the current step.

        Raises:
            DeviceFull: The memory did not suffice; the process has to be replaced.
            IzwiError: The job cannot be run.
        """


_encoder = msgspec.msgpack.Encoder()
_jobs = msgspec.msgpack.Decoder(DrawJob)
_events: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def encode_frame(message: DrawJob | Event) -> bytes:
    """Return a frame."""
    content = _encoder.encode(message)
    return len(content).to_bytes(_LENGTH_BYTES, "little") + content


async def read_job(reader: asyncio.StreamReader) -> DrawJob:
    """Read a job. Raises asyncio.IncompleteReadError, msgspec.MsgspecError."""
    return _jobs.decode(await _read_frame(reader))


async def read_event(reader: asyncio.StreamReader) -> Event:
    """Read an event. Raises asyncio.IncompleteReadError if the process is gone."""
    return _events.decode(await _read_frame(reader))


def refusal_of(error: IzwiError) -> Refused:
    """Return the event for an error."""
    param, retry_after_s = getattr(error, "param", None), getattr(error, "retry_after_s", 1)
    return Refused(error.code, str(error), param, retry_after_s)


def error_of(refusal: Refused) -> IzwiError:
    """Return the error that the process reported."""
    kind = _ERRORS.get(refusal.code, IzwiError)
    if issubclass(kind, InvalidRequest):
        return kind(refusal.message, param=refusal.param)
    if issubclass(kind, Overloaded):
        return kind(refusal.message, retry_after_s=refusal.retry_after_s)
    return kind(refusal.message)


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    num_bytes = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "little")
    return await reader.readexactly(num_bytes)
