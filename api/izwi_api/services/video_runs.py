"""Have a video drawn, and keep how far it is where all API servers see it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from izwi.errors import IzwiError, StorageFull

if TYPE_CHECKING:
    from izwi_api.drawing.jobs import DrawJob
    from izwi_api.drawing.videos import Video, VideoStore


logger = logging.getLogger(__name__)


async def run_video(socket_path: Path, store: VideoStore, video: Video, job: DrawJob) -> None:
    """Draw a video to its end, or until it is deleted; a failure is part of its state.

    Args:
        socket_path: Where the process that draws accepts jobs.
        store: Has the video.
        video: What is drawn; changed as it goes on.
        job: How.
    """
    try:
        await _follow(socket_path, store, video, job)
    except IzwiError as error:
        await asyncio.to_thread(store.fail, video, error.code, str(error))
    except OSError:
        logger.exception("a video could not be stored")
        code = StorageFull.code
        await asyncio.to_thread(store.fail, video, code, "the server could not store the video")


async def _follow(socket_path: Path, store: VideoStore, video: Video, job: DrawJob) -> None:
    from izwi_api.drawing.client import follow
    from izwi_api.drawing.jobs import Drawn, Step

    async with aclosing(follow(socket_path, job)) as events:
        async for event in events:
            if isinstance(event, Step):
                video.status = "in_progress"
                video.progress = min(99, 100 * event.num_done // event.num_steps)
                if not await asyncio.to_thread(store.save, video):
                    return
            elif isinstance(event, Drawn):
                video.size = f"{event.width}x{event.height}"
                await asyncio.to_thread(store.complete, video, event.content)
