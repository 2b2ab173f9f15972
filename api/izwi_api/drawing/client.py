"""Ask the process that draws for images."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from izwi.errors import EngineStopped
from izwi_api.drawing.jobs import (
    DrawJob,
    Drawn,
    Ended,
    Progress,
    Refused,
    encode_frame,
    error_of,
    read_event,
)


async def draw(socket_path: Path, job: DrawJob) -> list[Drawn]:
    """Have images drawn, and return them. Raises as `follow`."""
    async with aclosing(follow(socket_path, job)) as events:
        return [event async for event in events if isinstance(event, Drawn)]


async def follow(socket_path: Path, job: DrawJob) -> AsyncGenerator[Progress]:
    """Have images drawn, and yield them with their previews and steps.

    Closing the generator, or cancelling its task, cancels the job.

    Args:
        socket_path: Where the process accepts jobs.
        job: What to draw.

    Raises:
        Overloaded: Too many jobs wait, or the device has too little memory.
        EngineStopped: The process ended before the images were complete.
        IzwiError: The job cannot be run.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(socket_path)
    except OSError as error:
        raise EngineStopped("images cannot be drawn now") from error
    try:
        writer.write(encode_frame(job))
        await writer.drain()
        while not isinstance(event := await read_event(reader), Ended):
            if isinstance(event, Refused):
                raise error_of(event)
            yield event
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EngineStopped("the process that draws ended before the image was complete") from error
    finally:
        writer.close()
