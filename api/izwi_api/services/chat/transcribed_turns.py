"""Turn a conversation into text: transcribe audio, look up earlier spoken answers by id."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from izwi.audio.resample import resampling_of
from izwi.errors import InvalidAudio, InvalidRequest
from izwi.inputs.speech import TranscriptionInput
from izwi.model.capability import Capability
from izwi.model.frontend import TranscriptionFrontend
from izwi_api.schemas.chat import ChatBody
from izwi_api.schemas.chat_messages import AudioPart, InputAudio, Message, Part, text_of
from izwi_api.services.chat.spoken_turns import decode_input_audio
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModel
from izwi_api.services.transcription.transcribe import open_transcription


@dataclass(frozen=True, slots=True)
class TranscribedTurns:
    """A conversation as text.

    Attributes:
        texts: The text of each message; None for a message without audio.
        num_heard: Prompt positions that the transcriber computed.
    """

    texts: list[str | None]
    num_heard: int


async def transcribe_turns(services: Services, owner: str, body: ChatBody) -> TranscribedTurns:
    """Transcribe the audio of all messages concurrently, and look up earlier answers.

    Args:
        services: Decoder, transcriber and stored answers.
        owner: Name of the caller's API key, or empty.
        body: The conversation.

    Raises:
        ModelNotFound: No transcription model is served.
        InvalidRequest: An answer does not exist.
        InvalidAudio: A file is broken, not of the declared format, or contains no words.
        TooLarge: A file is too long.
        Overloaded: The engine's queue is full.
    """
    known = [await _known(services, owner, body.model, message) for message in body.messages]
    # what an earlier answer said is known, whatever else its message has
    heard = [
        message.parts if message.has_audio and message.audio is None else ()
        for message in body.messages
    ]
    transcriber = None
    if any(isinstance(part, AudioPart) for each in heard for part in each):
        name = body.transcription_model or services.registry.default(Capability.TRANSCRIBE)
        transcriber = services.registry.transcription(name)
    writing = _Writing(services, transcriber)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [[group.create_task(writing.text_of(part)) for part in each] for each in heard]
    except ExceptionGroup as failed:
        # one error is the cause; the other tasks were cancelled
        raise failed.exceptions[0] from None
    texts: list[str | None] = []
    for running, answer in zip(tasks, known, strict=True):
        said = [task.result() for task in running]
        if said and not any(text.strip() for text in said):
            raise InvalidAudio("no words were recognized in input_audio", param="messages")
        texts.append("\n".join(filter(None, said)) if said else answer)
    return TranscribedTurns(texts, writing.num_heard)


class _Writing:
    """Transcribes the audio of one conversation.

    Attributes:
        num_heard: Prompt positions that the transcriber computed so far.
    """

    def __init__(self, services: Services, transcriber: ServedModel[TranscriptionFrontend] | None):
        self.num_heard = 0
        self._services, self._transcriber = services, transcriber

    async def text_of(self, part: Part) -> str:
        """Return the text of a part."""
        if isinstance(part, AudioPart):
            return await self._write(part.input_audio)
        return text_of(part)

    async def _write(self, audio: InputAudio) -> str:
        assert self._transcriber is not None
        resampling = resampling_of(self._transcriber.frontend)
        ask = TranscriptionInput(await decode_input_audio(self._services, audio, resampling))
        async with await open_transcription(self._transcriber, ask) as transcription:
            await transcription.finish()
        self.num_heard += transcription.num_prompt_positions
        return transcription.text


async def _known(services: Services, owner: str, model_name: str, message: Message) -> str | None:
    """Return the text of the earlier answer that a message refers to, if any."""
    if message.audio is None:
        return None
    answer = await services.answers.find(owner, model_name, message.audio.id)
    if not isinstance(answer, str):
        raise InvalidRequest(
            f"the answer {message.audio.id!r} was given by a speech-to-speech model of that name; "
            "send its transcript as text instead",
            param="messages",
        )
    return answer
