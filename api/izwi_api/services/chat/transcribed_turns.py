"""Turn a conversation into text: transcribe audio, look up earlier spoken answers by id."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from izwi.audio.resample import resampling_of
from izwi.errors import InvalidAudio, InvalidRequest
from izwi.inputs.conversation import Answer
from izwi.inputs.speech import TranscriptionInput
from izwi.model.capability import Capability
from izwi.model.frontend import TranscriptionFrontend
from izwi_api.schemas.cascade import CascadeBody, HeardMessage
from izwi_api.schemas.spoken_chat import AudioPart, InputAudio
from izwi_api.services.chat.spoken_turns import decode_input_audio
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModel
from izwi_api.services.transcription.transcribe import open_transcription


@dataclass(frozen=True, slots=True)
class TranscribedTurns:
    """A conversation as text.

    Attributes:
        texts: The texts of each message's content; None for a message that is used as it was sent.
        num_heard: Prompt positions that the transcriber computed.
    """

    texts: list[list[str] | None]
    num_heard: int


def kept_text(text: str) -> Answer:
    """Return an answer's text in the form that `StoredAnswers` stores: one entry per byte."""
    return tuple((byte,) for byte in text.encode())


def placeholders(body: CascadeBody) -> list[list[str] | None]:
    """Return placeholder texts, to validate a body before anything is transcribed."""
    return [
        [""] if message.audio is not None else ["" for _ in _parts(message)] or None
        for message in body.messages
    ]


async def transcribe_turns(
    services: Services, owner: str, model_name: str, body: CascadeBody
) -> TranscribedTurns:
    """Transcribe the audio of all messages concurrently, and look up earlier answers.

    Args:
        services: Decoder, transcriber and stored answers.
        owner: Name of the caller's API key, or empty.
        model_name: The model whose earlier answers are looked up.
        body: The conversation.

    Raises:
        ModelNotFound: No transcription model is served.
        InvalidRequest: An answer does not exist.
        InvalidAudio: A file is broken, not of the declared format, or contains no words.
        TooLarge: A file is too long.
        Overloaded: The engine's queue is full.
    """
    parts = [_parts(message) for message in body.messages]
    known = [await _known(services, owner, model_name, message) for message in body.messages]
    transcriber = None
    if any(isinstance(part, AudioPart) for each in parts for part in each):
        name = body.transcription_model or services.registry.default(Capability.TRANSCRIBE)
        transcriber = services.registry.transcription(name)
    writing = _Writing(services, transcriber)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [[group.create_task(writing.text_of(part)) for part in each] for each in parts]
    except ExceptionGroup as failed:
        # one error is the cause; the other tasks were cancelled
        raise failed.exceptions[0] from None
    texts: list[list[str] | None] = []
    for each, running, answer in zip(parts, tasks, known, strict=True):
        said = [task.result() for task in running]
        is_heard = any(isinstance(part, AudioPart) for part in each)
        if is_heard and not any(text.strip() for text in said):
            raise InvalidAudio("no words were recognized in input_audio", param="messages")
        said = [text for text in said if text] if is_heard else said
        texts.append([answer] if answer is not None else said or None)
    return TranscribedTurns(texts, writing.num_heard)


class _Writing:
    """Transcribes the audio of one conversation.

    Attributes:
        num_heard: Prompt positions that the transcriber computed so far.
    """

    def __init__(self, services: Services, transcriber: ServedModel[TranscriptionFrontend] | None):
        self.num_heard = 0
        self._services, self._transcriber = services, transcriber

    async def text_of(self, part: AudioPart | str) -> str:
        """Return the text of a part."""
        return part if isinstance(part, str) else await self._write(part.input_audio)

    async def _write(self, audio: InputAudio) -> str:
        assert self._transcriber is not None
        resampling = resampling_of(self._transcriber.frontend)
        ask = TranscriptionInput(await decode_input_audio(self._services, audio, resampling))
        async with await open_transcription(self._transcriber, ask) as transcription:
            await transcription.finish()
        self.num_heard += transcription.num_prompt_positions
        return transcription.text


def _parts(message: HeardMessage) -> Sequence[AudioPart | str]:
    """Return a message's parts (audio or text); empty if it has none and is used as it is."""
    parts: list[Any] = message.content if isinstance(message.content, list) else []
    if not any(isinstance(part, AudioPart) for part in parts):
        return ()
    return [part if isinstance(part, AudioPart) else _text(part) for part in parts]


def _text(part: object) -> str:
    is_text = isinstance(part, dict) and part.keys() == {"type", "text"}
    if not is_text or part["type"] != "text" or not isinstance(part["text"], str):  # type: ignore[index]
        raise InvalidRequest(
            "a part of a message must have the type 'input_audio', or the type 'text' and a text",
            param="messages",
        )
    return str(part["text"])  # type: ignore[index]


async def _known(
    services: Services, owner: str, model_name: str, message: HeardMessage
) -> str | None:
    """Return the text of the earlier answer that a message refers to, if any."""
    if message.audio is None:
        return None
    if message.role != "assistant":
        raise InvalidRequest("only a message of the assistant may have audio", param="messages")
    entries = await services.answers.find(owner, model_name, message.audio.id)
    return bytes(entry[0] for entry in entries).decode()
