"""The asyncio client, for a server by its address or for models in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self, Unpack
from urllib.parse import quote

import numpy as np

from izwi.audio.encode import PCM_RATE
from izwi.errors import InvalidRequest, ModelNotFound
from izwi.model.alignment import AlignedWord
from izwi_api.client.audio import Audio
from izwi_api.client.connection import (
    AppConnection,
    Connection,
    Requests,
    ServerConnection,
    Upload,
    file_name,
    server_address,
)
from izwi_api.client.images import DrawOptions, request_images
from izwi_api.client.speech import (
    SpeechOptions,
    audio_bytes,
    request_speech,
    request_speech_of_pieces,
)
from izwi_api.client.streams import (
    Answer,
    ChatDelta,
    ResponseStream,
    SpeechDetails,
    Transcript,
    TranscriptUpdate,
    tasks_of,
)
from izwi_api.client.talk import (
    SpokenAnswer,
    SpokenDelta,
    TalkOptions,
    request_spoken_answer,
    spoken_turn,
    talk_fields,
)
from izwi_api.client.text import (
    ChatOptions,
    Message,
    TranscriptionOptions,
    request_alignment,
    request_answer,
    request_transcription,
)
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.settings import DEFAULT_MODELS

AudioSource = Audio | str | Path | bytes
_VOICES = "/v1/audio/voices"


class AsyncClient:
    """Speech, transcription, alignment, chat and voices. Use it in `async with`.

    All methods raise IzwiError: InvalidRequest or a subclass for invalid requests, EngineStopped if
    a server cannot be reached or closes the connection early.

    Args:
        base_url: Address of a server; None loads models in this process.
        api_key: The server's API key.
        models: Models for this process to load: folders, hub ids and embedded names.
        runtime: Device, dtype and quantization of these models.

    Attributes:
        base_url: The argument of this name.

    Raises:
        InvalidRequest: The address is invalid.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        models: Sequence[str] = DEFAULT_MODELS,
        runtime: RuntimeOptions | None = None,
    ):
        if base_url is not None:
            server_address(base_url)
        self.base_url, self._api_key = base_url, api_key
        self._models, self._runtime = models, runtime or RuntimeOptions()
        self._stack = AsyncExitStack()
        self._opened: Requests | None = None

    async def __aenter__(self) -> Self:
        """Load the models, if any, and return the client. Raises IzwiError."""
        async with AsyncExitStack() as stack:
            connection: Connection
            if self.base_url is not None:
                connection = ServerConnection(self.base_url, self._api_key)
            else:
                # imports torch, which a server's client does not need
                from izwi_api.client.in_process import running_app

                app = await stack.enter_async_context(running_app(self._models, self._runtime))
                connection = AppConnection(app)
            await stack.enter_async_context(connection.http)
            self._opened, self._stack = Requests(connection), stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop all requests, and the engine if it is in this process."""
        await self._stack.aclose()

    # -- speech ----------------------------------------------------------------------------------
    async def say(self, text: str, **options: Unpack[SpeechOptions]) -> Audio:
        """Speak a text and return all of its audio."""
        async with self.stream_speech(text, **options) as stream:
            pieces = [audio.samples async for audio in stream]
        return Audio(np.concatenate([np.zeros(0, np.float32), *pieces]), PCM_RATE)

    def stream_speech(
        self, text: str | AsyncIterable[str], **options: Unpack[SpeechOptions]
    ) -> ResponseStream[Audio, SpeechDetails]:
        """Speak a text and stream its audio while it is generated.

        Args:
            text: The whole text, or an iterator over its pieces, split anywhere, which are spoken
                as they arrive.
            options: Options of the speech.
        """
        details = SpeechDetails()
        return ResponseStream(self._speech(text, options, details), details)

    async def _speech(
        self, text: str | AsyncIterable[str], options: SpeechOptions, details: SpeechDetails
    ) -> AsyncGenerator[Audio]:
        requests = self._requests
        model = await self.model_for("speech", options.get("model"))
        voice = options.get("voice")
        if voice is None and options.get("ref_audio") is None:
            voice = await self._first_speaker(model)
        fields = {**options, "model": model, "voice": voice}
        if isinstance(text, str):
            audio = request_speech(requests, {**fields, "input": text}, details)
        else:
            audio = request_speech_of_pieces(requests, fields, text, details)
        try:
            async for piece in audio:
                yield piece
        finally:
            await audio.aclose()

    # -- text ------------------------------------------------------------------------------------
    async def transcribe(
        self, audio: AudioSource, **options: Unpack[TranscriptionOptions]
    ) -> Transcript:
        """Transcribe audio.

        Args:
            audio: Audio, a file's path or its bytes.
            options: Options of the transcription.
        """
        return await self.stream_transcription(audio, **options).whole()

    def stream_transcription(
        self, audio: AudioSource, **options: Unpack[TranscriptionOptions]
    ) -> ResponseStream[TranscriptUpdate, Transcript]:
        """Transcribe audio and stream the transcript. Arguments as for `transcribe`."""
        transcript = Transcript()
        return ResponseStream(self._transcription(audio, options, transcript), transcript)

    async def _transcription(
        self, audio: AudioSource, options: TranscriptionOptions, transcript: Transcript
    ) -> AsyncGenerator[TranscriptUpdate]:
        model = await self.model_for("transcription", options.get("model"))
        fields, upload = {**options, "model": model}, _upload("file", audio)
        updates = request_transcription(self._requests, fields, upload, transcript)
        try:
            async for update in updates:
                yield update
        finally:
            await updates.aclose()

    async def align(
        self,
        audio: AudioSource,
        text: str,
        *,
        model: str | None = None,
        language: str | None = None,
    ) -> list[AlignedWord]:
        """Return the start and end of each word of a text in audio.

        Args:
            audio: Audio, a file's path or its bytes.
            text: The transcript of the audio.
            model: Name of an alignment model; by default the first one.
            language: The spoken language; required for Japanese.
        """
        fields = {"text": text, "model": model, "language": language}
        return await request_alignment(self._requests, fields, _upload("file", audio))

    async def chat(
        self, messages: str | Sequence[Message], **options: Unpack[ChatOptions]
    ) -> Answer:
        """Answer a conversation.

        Args:
            messages: Messages in OpenAI's format, or the text of a single user message.
            options: How to answer it.
        """
        return await self.stream_chat(messages, **options).whole()

    def stream_chat(
        self, messages: str | Sequence[Message], **options: Unpack[ChatOptions]
    ) -> ResponseStream[ChatDelta, Answer]:
        """Answer a conversation and stream the answer. Arguments as for `chat`."""
        answer = Answer()
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return ResponseStream(self._chat(said, options, answer), answer)

    async def _chat(
        self, messages: Sequence[Message], options: ChatOptions, answer: Answer
    ) -> AsyncGenerator[ChatDelta]:
        model = await self.model_for("chat", options.get("model"))
        fields = {**options, "model": model, "messages": list(messages)}
        deltas = request_answer(self._requests, fields, answer)
        try:
            async for delta in deltas:
                yield delta
        finally:
            await deltas.aclose()

    async def draw(self, prompt: str, **options: Unpack[DrawOptions]) -> list[bytes]:
        """Draw images, and return their files. Only a server with `--images` does."""
        return await request_images(self._requests, {**options, "prompt": prompt})

    async def talk(self, audio: AudioSource, **options: Unpack[TalkOptions]) -> SpokenAnswer:
        """Answer speech with speech.

        Args:
            audio: Audio, a file's path or its bytes.
            options: How to answer it.
        """
        return await self.stream_talk(audio, **options).whole()

    def stream_talk(
        self, audio: AudioSource, **options: Unpack[TalkOptions]
    ) -> ResponseStream[SpokenDelta, SpokenAnswer]:
        """Answer speech with speech and stream it. Arguments as for `talk`."""
        answer = SpokenAnswer()
        return ResponseStream(self._talk(audio, options, answer), answer)

    async def _talk(
        self, audio: AudioSource, options: TalkOptions, answer: SpokenAnswer
    ) -> AsyncGenerator[SpokenDelta]:
        model = options.get("model") or await self._model_to_talk_with()
        turn = await asyncio.to_thread(lambda: spoken_turn(audio_bytes(audio)))
        deltas = request_spoken_answer(self._requests, talk_fields(model, turn, options), answer)
        try:
            async for delta in deltas:
                yield delta
        finally:
            await deltas.aclose()

    async def _model_to_talk_with(self) -> str:
        """Return the first speech-to-speech model, otherwise the first chat model."""
        try:
            return await self.model_for("conversation")
        except ModelNotFound:
            return await self.model_for("chat")

    # -- voices ----------------------------------------------------------------------------------
    async def clone(
        self,
        name: str,
        clip: AudioSource,
        text: str | None = None,
        *,
        consent: str,
        x_vector_only: bool = False,
        prompt: str | None = None,
    ) -> dict[str, Any]:
        """Store a voice, so that requests can use it by name.

        Args:
            name: Name of the new voice.
            clip: A few seconds of one speaker.
            text: Transcript of the clip; by default it is transcribed.
            consent: A statement that the speaker agreed, or the id of a consent recording.
            x_vector_only: Use only the clip's speaker embedding, not its speech.
            prompt: The description that the clip was generated from, if it is a synthetic voice.

        Returns:
            The voice, as `voice` does.
        """
        fields = {
            "name": name,
            "consent": consent,
            "ref_text": text,
            "x_vector_only": "true" if x_vector_only else None,
            "prompt": prompt,
        }
        return await self._requests.post_form(_VOICES, fields, _upload("audio_sample", clip))

    async def voices(self) -> list[dict[str, Any]]:
        """List the speakers of the models, the stored voices, and OpenAI's names."""
        return _entries(await self._requests.get(_VOICES))

    async def voice(self, key: str) -> dict[str, Any]:
        """Describe a voice, by its name or id."""
        return await self._requests.get(_voice_path(key))

    async def voice_clip(self, key: str) -> bytes:
        """Return the original clip file of a stored voice."""
        return await self._requests.content(f"{_voice_path(key)}/sample")

    async def delete_voice(self, key: str) -> None:
        """Delete a stored voice and its clip."""
        await self._requests.delete(_voice_path(key))

    # -- models ----------------------------------------------------------------------------------
    async def models(self) -> list[dict[str, Any]]:
        """List the served models: `id` is the name, `task` the task."""
        return _entries(await self._requests.get("/v1/models"))

    async def metrics(self) -> str:
        """Return the server's metrics in the text format of Prometheus."""
        return (await self._requests.content("/metrics")).decode()

    async def model_for(self, task: str, wanted: str | None = None) -> str:
        """Return the name of the given model, or of the first one served for a task.

        Args:
            task: "speech", "transcription", "alignment", "chat" or "conversation".
            wanted: A name, or None.

        Raises:
            ModelNotFound: No model is served for the task.
        """
        if wanted is not None:
            return wanted
        for entry in await self.models():
            if task in tasks_of(entry):
                return str(entry["id"])
        raise ModelNotFound(f"{self._requests.shown} serves no model for {task}", param="model")

    def load_model(self, name: str) -> AsyncGenerator[dict[str, Any]]:
        """Load a model on the server, and stream progress events; the last one is `ready`."""
        return self._requests.events(f"{_model_path(name)}/load", {})

    def unload_model(self, name: str) -> AsyncGenerator[dict[str, Any]]:
        """Unload a model after its running requests, and stream events; the last is `unloaded`."""
        return self._requests.events(f"{_model_path(name)}/unload", {})

    def pull_model(self, name: str) -> AsyncGenerator[dict[str, Any]]:
        """Download a model from the hub to the server, to load it later."""
        return self._requests.events("/v1/models/pull", {"model": name})

    async def _first_speaker(self, model: str) -> str | None:
        """Return a model's default speaker, or None if it has none."""
        for voice in await self.voices():
            if voice.get("kind") == "speaker" and voice.get("model") == model:
                return str(voice["id"])
        return None

    @property
    def _requests(self) -> Requests:
        if self._opened is None:
            raise InvalidRequest("the client is not open; use it in `async with`")
        return self._opened


def _upload(field: str, audio: AudioSource) -> Upload:
    path = Path(audio) if isinstance(audio, str | Path) else None
    return Upload(field, file_name(path), audio_bytes(audio))


def _entries(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return list(answer.get("data", []))


def _voice_path(key: str) -> str:
    return f"{_VOICES}/{quote(key, safe='')}"


def _model_path(name: str) -> str:
    return f"/v1/models/{quote(name, safe='')}"
