"""Warm engines: compute what requests will share before the first of them arrives.

A file lists system prompts and voices (docs/replicas.md). Each engine computes them in background
when it starts, also one that replaces another, so that first requests find their prefixes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace as with_fields
from uuid import uuid4

from msgspec.structs import replace

from izwi.engine_client.protocol import EngineClient
from izwi.errors import IzwiError
from izwi.host.threads import compute
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.inputs.speech import SpeechInput
from izwi.model.frontend import Frontend
from izwi.request.request import Request
from izwi_api.schemas.warm_file import WarmFile, WarmPrompt, WarmVoice
from izwi_api.services.context import Services, chunks_of
from izwi_api.services.models.served import ServedModel
from izwi_api.services.voices.names import resolve_voice

logger = logging.getLogger(__name__)

# What is said with a voice to warm it: little, and with no more than two frames.
_WORDS, _FRAMES = "Hello.", 3


class Warming:
    """Warms each engine that starts, in the background.

    Args:
        services: The models and voices.
        wanted: What to compute.
    """

    def __init__(self, services: Services, wanted: WarmFile):
        self._services, self._wanted = services, wanted
        self._tasks: set[asyncio.Task[int]] = set()

    def start(self, engine: EngineClient) -> None:
        """Warm an engine; call it on the event loop."""
        task = asyncio.get_running_loop().create_task(self.warm(engine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Stop what still runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def warm(self, engine: EngineClient) -> int:
        """Compute everything on one engine, one after the other; return how much was computed.

        What cannot be computed is logged, and costs nothing else.
        """
        num_warmed = 0
        items: Sequence[WarmPrompt | WarmVoice] = (*self._wanted.prompt, *self._wanted.voice)
        for item in items:
            try:
                await self._warm_one(engine, item)
            except IzwiError as error:
                logger.warning("could not warm %s: %s", item, error)
            else:
                num_warmed += 1
        logger.info("warmed %d of %d prompts and voices", num_warmed, len(items))
        return num_warmed

    async def _warm_one(self, engine: EngineClient, item: WarmPrompt | WarmVoice) -> None:
        name, models = f"warm-{uuid4().hex}", self._services.registry
        if isinstance(item, WarmPrompt):
            chat = models.chat(item.model)
            turns = (ChatMessage(Role.SYSTEM, item.system), ChatMessage(Role.USER, _WORDS))
            ask = ChatInput(turns, temperature=0.0, max_new_tokens=1)
            request = await compute(chat.frontend.prepare_chat, name, chat.name, ask)
            await _run(engine, chat, request)
            return
        speaks = models.speech(item.model)
        voice = await resolve_voice(self._services, speaks, item.name)
        said = SpeechInput(_WORDS, voice=voice, max_new_tokens=_FRAMES)
        request = await compute(speaks.frontend.prepare_speech, name, speaks.name, said)
        await _run(engine, speaks, request)


async def _run(engine: EngineClient, model: ServedModel[Frontend], request: Request) -> None:
    """Run a request on this engine, as background work, and drop its output."""
    there = with_fields(model, engine=engine)
    async with there.submit(replace(request, streams=False)) as answer:
        async for _ in chunks_of(answer):
            pass
