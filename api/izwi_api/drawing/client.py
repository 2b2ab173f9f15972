"""Ask the process that draws for images."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from izwi.errors import EngineStopped
from izwi_api.drawing.jobs import (
    Begun,
    DrawJob,
    Drawn,
    Ended,
    Progress,
    Refused,
    encode_frame,
    error_of,
    read_event,
)

_ENDED = "the process that draws ended before the image was complete"
# A job that waited is asked of the next process when one ends, this often.
_MOST_PROCESSES = 5


class _NotBegunError(Exception):
    """The process ended, or was full, while the job waited."""


async def draw(socket_path: Path, job: DrawJob) -> list[Drawn]:
    """Have images drawn, and return them. Raises as `follow`."""
    async with aclosing(follow(socket_path, job)) as events:
        return [event async for event in events if isinstance(event, Drawn)]


async def follow(socket_path: Path, job: DrawJob) -> AsyncGenerator[Progress]:
    """Have images drawn, and yield them with their previews and steps.

    Closing the generator, or cancelling its task, cancels the job. A job that had to wait when its
    process ended is run by the next one.

    Args:
        socket_path: Where the process accepts jobs.
        job: What to draw.

    Raises:
        Overloaded: Too many jobs wait, or the device has too little memory.
        EngineStopped: The process ended before the images were complete.
        IzwiError: The job cannot be run.
    """
    for _ in range(_MOST_PROCESSES):
        async with aclosing(_follow_in_one(socket_path, job)) as events:
            try:
                async for event in events:
                    yield event
                return
            except _NotBegunError:  # the next process accepts from the same socket
                continue
    raise EngineStopped(_ENDED)


async def _follow_in_one(socket_path: Path, job: DrawJob) -> AsyncGenerator[Progress]:
    """Follow a job in the process that accepts it. Raises _NotBegunError: it ended before."""
    try:
        reader, writer = await asyncio.open_unix_connection(socket_path)
    except OSError as error:
        raise EngineStopped("images cannot be drawn now") from error
    has_begun = False
    try:
        writer.write(encode_frame(job))
        await writer.drain()
        while not isinstance(event := await read_event(reader), Ended):
            if isinstance(event, Refused):
                raise error_of(event)
            if isinstance(event, Begun):
                has_begun = True
            else:
                yield event
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        if not has_begun:
            raise _NotBegunError from error
        raise EngineStopped(_ENDED) from error
    finally:
        writer.close()
