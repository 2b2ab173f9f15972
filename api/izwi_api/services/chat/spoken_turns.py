"""Read the turns of a spoken conversation: decode files, look up earlier answers by id."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from izwi.arrays import Float32
from izwi.audio.resample import Resampling
from izwi.errors import InvalidAudio, InvalidRequest
from izwi.inputs.conversation import AnswerContent, AudioContent, SpokenTurn
from izwi_api.schemas.chat_messages import AudioPart, InputAudio, Message, text_of
from izwi_api.services.context import Services

_RATE_HZ = 16_000
# Magic bytes of each format; an MP3 may start with a frame instead, whose first 11 bits are set.
_ID3, _RIFF, _WAVE = b"ID3", (b"RIFF", b"RF64"), b"WAVE"


async def read_turns(
    services: Services,
    owner: str,
    model_name: str,
    messages: Sequence[Message],
    resampling: Resampling,
) -> tuple[SpokenTurn, ...]:
    """Decode the audio of messages and look up earlier answers.

    Args:
        services: Decoder and stored answers.
        owner: Name of the caller's API key, or empty.
        model_name: The speech-to-speech model, by the name in the request.
        messages: The conversation.
        resampling: The filter for resampling the model's audio.

    Raises:
        InvalidRequest: An answer does not exist, or a message is empty.
        InvalidAudio: A file is broken, or not of the declared format.
        TooLarge: A file is too long.
    """
    turns = []
    for message in messages:
        parts: list[str | AudioContent | AnswerContent] = []
        if message.audio is not None:
            answer = await services.answers.find(owner, model_name, message.audio.id)
            parts.append(answer)
        for part in message.parts:
            if isinstance(part, AudioPart):
                samples = await decode_input_audio(services, part.input_audio, resampling)
                parts.append(AudioContent(samples))
            else:
                parts.append(text_of(part))
        if message.refusal is not None and not message.content:
            parts.append(message.refusal)
        if not parts:
            raise InvalidRequest("a message has neither content nor audio", param="messages")
        turns.append(SpokenTurn(message.model_role, tuple(parts)))
    return tuple(turns)


async def decode_input_audio(
    services: Services, audio: InputAudio, resampling: Resampling
) -> Float32:
    """Decode the audio of a message: (n,) float32 at 16 kHz. Raises as `read_turns`."""
    try:
        content = base64.b64decode(audio.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidAudio("input_audio.data is not base64", param="messages") from error
    if not _is_format(content, audio.format):
        raise InvalidAudio(
            f"input_audio.data is not {audio.format} audio, although its format says so",
            param="messages",
        )
    limits = services.settings.upload_limits
    return await services.decoder.decode(content, _RATE_HZ, limits, resampling)


def _is_format(content: bytes, name: str) -> bool:
    if name == "wav":
        return content[:4] in _RIFF and content[8:12] == _WAVE
    begins = len(content) > 1 and content[0] == 0xFF and content[1] & 0xE0 == 0xE0
    return content.startswith(_ID3) or begins
