"""The app in this process: models, an engine and the endpoints, without a socket."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from typing import TypeVar

from fastapi import FastAPI

from izwi_api.client.app_transport import App, Message
from izwi_api.environment import read_settings
from izwi_api.http.errors import caller_is_own_process
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.app import create_app
from izwi_api.services.models.no_models import without_models
from izwi_api.settings import Access, Settings

T = TypeVar("T")

# The owner of this process is limited only by the machine.
_NO_LIMIT = 1 << 62


@asynccontextmanager
async def running_app(models: Sequence[str], runtime: RuntimeOptions) -> AsyncGenerator[App]:
    """Load models, and run the app over them until the block ends.

    Args:
        models: Folders, hub ids and embedded names. If empty, only endpoints without models work.
        runtime: Device, dtype and kernels.

    Raises:
        IzwiError: A model or a setting is invalid.
    """
    app = await _in_daemon_thread(lambda: _create(models, runtime))
    async with app.router.lifespan_context(app):

        async def own(scope: Message, receive: object, send: object) -> None:
            caller_is_own_process.set(True)  # for this request only
            await app(scope, receive, send)  # type: ignore[arg-type]

        yield own


def _create(models: Sequence[str], runtime: RuntimeOptions) -> FastAPI:
    settings = read_settings(os.environ)
    if not models:
        local = without_models(settings)
    else:
        # torch takes seconds to load
        from izwi_api.serve import local_services

        local = local_services.open_services(models, runtime)
    return create_app(local.engine, local.registry, own_settings(settings))


def own_settings(settings: Settings) -> Settings:
    """Return the settings of an app that only this process can call.

    There are no keys and no rate limits, and files are decoded in this process. The limit on the
    length of a file remains.
    """
    return replace(
        settings,
        access=Access(),
        tls=None,
        max_upload_bytes=_NO_LIMIT,
        max_json_bytes=_NO_LIMIT,
        max_input_chars=_NO_LIMIT,
        stream_text_s=inf,
        stream_utterance_chars=_NO_LIMIT,
        decode_workers=0,
        manage_models=False,
        batches=False,
    )


async def _in_daemon_thread(work: Callable[[], T]) -> T:
    """Run a function that may take minutes, without delaying the exit of the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(set_outcome: Callable[[], None]) -> None:
        if not done.cancelled():
            set_outcome()

    def run() -> None:
        try:
            outcome = work()
        except BaseException as error:
            failure = error
            loop.call_soon_threadsafe(finish, lambda: done.set_exception(failure))
        else:
            loop.call_soon_threadsafe(finish, lambda: done.set_result(outcome))

    threading.Thread(target=run, name="izwi-load", daemon=True).start()
    return await done
