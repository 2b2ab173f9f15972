"""POST /v1/audio/speech/batch: synthesise many texts as background work.

The response is one JSON object. It is sent result by result, in the order of the items, so that the
audio of a whole batch need not be held in memory.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from uuid import uuid4

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from izwi.arrays import Float32
from izwi.audio.encode import CONTENT_TYPES, stream_encoder, with_length
from izwi.audio.tempo import StreamTempo
from izwi.errors import IzwiError, TooLarge
from izwi.model.capability import Capability
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_json
from izwi_api.http.errors import body_of, error_body, invalid_body
from izwi_api.http.live_response import live_response
from izwi_api.routes.openapi import json_body
from izwi_api.schemas.alignment import word_json
from izwi_api.schemas.speech import HINTS
from izwi_api.schemas.speech_batch import BatchItem, SpeechBatchBody, parse_batch, parse_item
from izwi_api.services.context import Services
from izwi_api.services.speech.request import asked_speech, check_texts, ignored_fields
from izwi_api.services.speech.synthesis import Speech, open_speech
from izwi_api.services.speech.word_times import TimedSpeech, find_word_aligner

logger = logging.getLogger(__name__)
router = APIRouter()

# Bytes of audio of one batch, because results wait in memory for earlier ones.
MAX_BATCH_BYTES = 256 << 20
# Size of a file's head; formats that store their length have it there.
_HEAD_BYTES = 64

_HINTS = {"voice": HINTS["voice"]}


@router.post("/v1/audio/speech/batch", openapi_extra=json_body(SpeechBatchBody, _HINTS))
async def create_speech_batch(request: Request) -> Response:
    """Speak many texts."""
    services = services_of(request)
    batch = parse_batch(await read_json(request, services.settings.max_json_bytes))
    # If the batch's own model does not exist, the whole batch is refused.
    model_name = batch.model or services.registry.default(Capability.SPEAK)
    services.registry.speech(model_name)
    return await live_response(_answer(_Batch(services, batch, model_name)), "application/json")


async def _answer(batch: _Batch) -> AsyncGenerator[bytes]:
    head = {"id": f"speech-batch-{uuid4().hex}", "object": "audio.speech.batch"}
    yield json.dumps(head)[:-1].encode() + b', "results": ['
    # All start together; the engine decides how many run at a time.
    items = batch.body.items
    tasks = deque(asyncio.create_task(batch.result(i, item)) for i, item in enumerate(items))
    num_succeeded, comma = 0, b""
    try:
        while tasks:
            succeeded, result = await tasks[0]
            tasks.popleft()
            num_succeeded += succeeded
            yield comma + result
            comma = b", "
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    total = len(items)
    counts = {"total": total, "succeeded": num_succeeded, "failed": total - num_succeeded}
    yield b"], " + json.dumps(counts)[1:].encode()


class _Batch:
    """The fields that all items of a batch share."""

    def __init__(self, services: Services, body: SpeechBatchBody, model_name: str):
        self.body = body
        self._services, self._model_name = services, model_name
        self._num_bytes = 0

    async def result(self, index: int, item: object) -> tuple[bool, bytes]:
        """Speak one item; return whether it succeeded, and its result as JSON."""
        try:
            reported = await self._say(parse_item(self.body, self._model_name, item))
        except ValidationError as error:
            reported = {"status": "error"} | invalid_body(list(error.errors()))
        except IzwiError as error:
            reported = {"status": "error"} | body_of(error)
        except Exception:
            logger.exception("an item of a batch failed")
            internal = error_body("internal error", "server_error", code="internal_error")
            reported = {"status": "error"} | internal
        result = await asyncio.to_thread(json.dumps, {"index": index} | reported)
        return reported["status"] == "success", result.encode()

    async def _say(self, item: BatchItem) -> dict[str, object]:
        services = self._services
        check_texts(item, services.settings)
        timing = None
        if item.word_timestamps:
            timing = find_word_aligner(services.registry, item.language)
        model = services.registry.speech(item.model)
        ask = await asked_speech(services, model, item)
        words: dict[str, object] = {}
        async with await open_speech(model, ask, streams=False) as speech:
            file = _File(item, speech.sample_rate)
            if timing is None:
                await self._fill(file, speech)
            else:
                async with TimedSpeech(speech, *timing, item.speed) as timed:
                    await self._fill(file, timed)
                    words["words"] = list(map(word_json, await timed.rest()))
        audio = await asyncio.to_thread(base64.b64encode, file.content)
        ignored = ignored_fields(model.frontend, item)
        return {
            "status": "success",
            "audio_data": audio.decode("ascii"),
            "media_type": CONTENT_TYPES[item.response_format],
            **words,
            **({"ignored": ignored} if ignored else {}),
            "usage": {
                "input_tokens": speech.num_prompt_positions,
                "output_tokens": speech.num_frames,
                "total_tokens": speech.num_prompt_positions + speech.num_frames,
            },
        }

    async def _fill(self, file: _File, speech: Speech | TimedSpeech) -> None:
        async with aclosing(speech.output()) as chunks:
            async for chunk in chunks:
                if chunk.pcm is not None and chunk.pcm.size:
                    # In a thread, because this event loop also sends streams.
                    self._count(await asyncio.to_thread(file.write, chunk.pcm))
        self._count(await asyncio.to_thread(file.finish))

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._num_bytes > MAX_BATCH_BYTES:
            raise TooLarge(
                f"the audio of the batch is larger than {MAX_BATCH_BYTES} bytes; ask for fewer "
                "items at a time, or for a compressed format",
                param="items",
            )


class _File:
    """The file of an item.

    Attributes:
        content: Its bytes so far.
    """

    def __init__(self, item: BatchItem, rate: int):
        self.content = bytearray()
        self._tempo = StreamTempo(rate, item.speed)
        self._encoder = stream_encoder(item.response_format, rate)
        self._num_samples = 0

    def write(self, pcm: Float32) -> int:
        """Add samples, (n,) float32; return the number of new bytes."""
        stretched = self._tempo.write(pcm)
        self._num_samples += stretched.size
        return self._add(self._encoder.write(stretched))

    def finish(self) -> int:
        """Write the end, and the length into the head; return the number of new bytes."""
        rest = self._tempo.finish()
        self._num_samples += rest.size
        num_bytes = self._add(self._encoder.write(rest) + self._encoder.finish())
        self.content[:_HEAD_BYTES] = with_length(
            bytes(self.content[:_HEAD_BYTES]), self._num_samples
        )
        return num_bytes

    def _add(self, piece: bytes) -> int:
        self.content += piece
        return len(piece)
