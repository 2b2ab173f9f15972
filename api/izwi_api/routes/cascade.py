"""POST /v1/chat/completions with sound, by a transcriber, a chat model and a voice.

`izwi_api.routes.chat` hands over the bodies that send sound or ask for it.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import JSONResponse, Response

from izwi.audio.encode import stream_encoder, with_length
from izwi.errors import IzwiError
from izwi.inputs import SpeechInput
from izwi_api.http.errors import error_line
from izwi_api.http.live_response import live_response
from izwi_api.http.sse import DONE, MEDIA_TYPE, event
from izwi_api.http.usage import key_name
from izwi_api.schemas.cascade import CascadeBody, SpokenWith, chat_body
from izwi_api.schemas.cascade_completion import CascadeCompletion
from izwi_api.schemas.chat import ChatBody, chat_input
from izwi_api.schemas.spoken_chat import FORMATS
from izwi_api.services.context import Services
from izwi_api.services.converse import SoundPiece, SpokenAnswer, Voice, open_spoken_answer
from izwi_api.services.speech_writer import default_writable_model
from izwi_api.services.written_turns import kept_text, placeholders, write_turns
from izwi_api.voices.names import resolve_voice

_SEED_BITS = 63


async def heard_body(services: Services, values: Mapping[str, Any]) -> tuple[ChatBody, int]:
    """Return a body whose sound is written down, and the positions that were read for it.

    Raises:
        IzwiError: A sound cannot be written down.
    """
    body = CascadeBody.model_validate(values)
    body.check()
    # before files are decoded
    chat_input(chat_body(values, placeholders(body)), 0)
    turns = await write_turns(services, key_name(), str(values["model"]), body)
    return chat_body(values, turns.texts), turns.num_heard


async def speak_answer(services: Services, values: Mapping[str, Any]) -> Response:
    """Answer a body that asks for sound.

    Raises:
        IzwiError: It cannot be answered.
    """
    asked = CascadeBody.model_validate(values)
    asked.check()
    spoken_with = asked.audio
    assert spoken_with is not None
    speech_model = str(values.get("speech_model") or default_writable_model(services.registry))
    voice = await resolve_voice(services, speech_model, spoken_with.voice_name)
    body, num_heard = await heard_body(services, values)
    seed = secrets.randbits(_SEED_BITS) if body.seed is None else body.seed
    spoken = await open_spoken_answer(
        services.engine,
        services.registry,
        body.model,
        chat_input(body, seed),
        Voice(speech_model, SpeechInput("", voice=voice, seed=seed)),
        stops=body.stop,
    )
    completion = CascadeCompletion(body.model, services.answers.new_id(), num_heard)
    telling = _Telling(services, body, spoken_with, spoken, completion)
    try:
        if body.stream:
            return await live_response(telling.events(), MEDIA_TYPE)
        return JSONResponse(await telling.whole())
    except BaseException:
        # A generator that never began has no `finally` to run.
        spoken.abort()
        raise


class _Telling:
    """Tells a spoken answer to its caller, whole or as events."""

    def __init__(
        self,
        services: Services,
        body: ChatBody,
        spoken_with: SpokenWith,
        spoken: SpokenAnswer,
        completion: CascadeCompletion,
    ):
        self._services, self._body, self._completion = services, body, completion
        self._spoken = spoken
        rate = spoken.sample_rate
        assert rate is not None
        self._encoder = stream_encoder(FORMATS[spoken_with.format], rate)

    async def whole(self) -> dict[str, Any]:
        """Wait for all of it."""
        file, num_samples = bytearray(), 0
        async with aclosing(self._spoken.pieces()) as pieces:
            async for piece in pieces:
                if isinstance(piece, SoundPiece):
                    file += self._encoder.write(piece.pcm)
                    num_samples += len(piece.pcm)
        file += self._encoder.finish()
        sound = with_length(bytes(file), num_samples)
        return self._completion.whole(self._spoken, sound, await self._keep())

    async def events(self) -> AsyncGenerator[bytes]:
        """Yield text and sound as they come."""
        completion = self._completion
        blank: dict[str, object] = {"usage": None} if self._body.tells_usage else {}
        begun = False
        try:
            async with aclosing(self._spoken.pieces()) as pieces:
                async for piece in pieces:
                    if not begun:
                        yield event(completion.opening() | blank)
                        begun = True
                    if not isinstance(piece, SoundPiece):
                        yield event(completion.piece(piece) | blank)
                    elif data := self._encoder.write(piece.pcm):
                        yield event(completion.sound(data) | blank)
        except IzwiError as error:
            # Before the first event there is still a status to say it with.
            if not begun:
                raise
            yield error_line(error)
            return
        if not begun:
            yield event(completion.opening() | blank)
        if data := self._encoder.finish():
            yield event(completion.sound(data) | blank)
        if (expires_at := await self._keep()) is not None:
            yield event(completion.expiry(expires_at) | blank)
        yield event(completion.closing(self._spoken) | blank)
        if self._body.tells_usage:
            yield event(completion.bill(self._spoken))
        yield DONE

    async def _keep(self) -> int | None:
        """Keep what was said, so that its id can be sent back; None where nothing was."""
        text = self._spoken.answer.content
        if not text:
            return None
        answers, name = self._services.answers, self._completion.audio_id
        _, expires_at = await answers.keep(key_name(), self._body.model, kept_text(text), name)
        return expires_at
