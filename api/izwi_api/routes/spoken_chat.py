"""POST /v1/chat/completions with sound: a conversation is heard and answered aloud.

`izwi_api.routes.chat` hands over the bodies that send sound or ask for it.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import JSONResponse, Response

from izwi.audio.encode import stream_encoder, with_length
from izwi.conversation import ConversationInput
from izwi.errors import InvalidRequest, IzwiError
from izwi_api.http.errors import error_line
from izwi_api.http.live_response import live_response
from izwi_api.http.sse import DONE, MEDIA_TYPE, event
from izwi_api.http.usage import key_name
from izwi_api.schemas.spoken_chat import FORMATS, SpokenChatBody
from izwi_api.schemas.spoken_completion import SpokenCompletion
from izwi_api.services.context import Services
from izwi_api.services.converse import SoundPiece
from izwi_api.services.speech_to_speech import ConversationAnswer, open_conversation
from izwi_api.services.spoken_turns import read_turns

_SEED_BITS = 63


async def answer_aloud(services: Services, values: object) -> Response:
    """Answer a body that `has_sound`.

    Raises:
        IzwiError: It cannot be answered.
    """
    body = SpokenChatBody.model_validate(values)
    if body.speaks is not (body.audio is not None):
        message = "`audio` and the modality 'audio' belong together: give both or neither"
        raise InvalidRequest(message, param="audio")
    services.registry.conversation(body.model)  # before files are decoded
    ask = await _ask(services, body)
    answer = await open_conversation(services.engine, services.registry, body.model, ask)
    completion = SpokenCompletion(body.model, speaks=body.speaks)
    try:
        if body.stream:
            events = _events(services, body, answer, completion)
            return await live_response(events, MEDIA_TYPE)
        return JSONResponse(await _whole(services, body, answer, completion))
    except BaseException:
        # A generator that never began has no `finally` to run.
        answer.abort()
        raise


async def _ask(services: Services, body: SpokenChatBody) -> ConversationInput:
    return ConversationInput(
        await read_turns(services, key_name(), body.model, body.messages),
        speaks=body.speaks,
        temperature=body.temperature,
        top_k=body.top_k,
        audio_temperature=body.audio_temperature,
        audio_top_k=body.audio_top_k,
        seed=secrets.randbits(_SEED_BITS) if body.seed is None else body.seed,
        max_new_tokens=body.max_completion_tokens or body.max_tokens,
    )


async def _whole(
    services: Services,
    body: SpokenChatBody,
    answer: ConversationAnswer,
    completion: SpokenCompletion,
) -> dict[str, object]:
    if body.audio is None:
        async for _ in answer.pieces():
            pass
        return completion.whole(answer, b"", None)
    encoder, num_samples = stream_encoder(FORMATS[body.audio.format], answer.sample_rate), 0
    file = bytearray()
    async with aclosing(answer.pieces()) as pieces:
        async for piece in pieces:
            if isinstance(piece, SoundPiece):
                file += encoder.write(piece.pcm)
                num_samples += len(piece.pcm)
    file += encoder.finish()
    kept = await services.answers.keep(key_name(), body.model, answer.entries)
    return completion.whole(answer, with_length(bytes(file), num_samples), kept)


async def _events(
    services: Services,
    body: SpokenChatBody,
    answer: ConversationAnswer,
    completion: SpokenCompletion,
) -> AsyncGenerator[bytes]:
    blank: dict[str, object] = {"usage": None} if body.tells_usage else {}
    # known from the start, so that every piece names it
    answer_id, encoder = services.answers.new_id(), None
    if body.audio is not None:
        encoder = stream_encoder(FORMATS[body.audio.format], answer.sample_rate)
    begun = False
    try:
        async with aclosing(answer.pieces()) as pieces:
            async for piece in pieces:
                if not begun:
                    yield event(completion.opening(answer_id) | blank)
                    begun = True
                if not isinstance(piece, SoundPiece):
                    yield event(completion.text(answer_id, piece.content) | blank)
                elif encoder is not None and (data := encoder.write(piece.pcm)):
                    yield event(completion.sound(answer_id, data) | blank)
    except IzwiError as error:
        # Before the first event there is still a status to say it with.
        if not begun:
            raise
        yield error_line(error)
        return
    if not begun:
        yield event(completion.opening(answer_id) | blank)
    if encoder is not None:
        if data := encoder.finish():
            yield event(completion.sound(answer_id, data) | blank)
        keep = services.answers.keep
        _, expires_at = await keep(key_name(), body.model, answer.entries, answer_id)
        yield event(completion.expiry(answer_id, expires_at) | blank)
    yield event(completion.closing(answer) | blank)
    if body.tells_usage:
        yield event(completion.bill(answer))
    yield DONE
