"""The client for scripts and notebooks: `AsyncClient` on an event loop in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Generic, Self, TypeVar, Unpack

from izwi.model.alignment import AlignedWord
from izwi_api.client.async_client import AsyncClient, AudioSource
from izwi_api.client.audio import Audio
from izwi_api.client.images import DrawOptions
from izwi_api.client.loop_thread import LoopThread
from izwi_api.client.speech import SpeechOptions
from izwi_api.client.streams import (
    Answer,
    ChatDelta,
    ResponseStream,
    SpeechDetails,
    Transcript,
    TranscriptUpdate,
)
from izwi_api.client.talk import SpokenAnswer, SpokenDelta, TalkOptions
from izwi_api.client.text import ChatOptions, Message, TranscriptionOptions
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.settings import DEFAULT_MODELS

Item = TypeVar("Item")
Result = TypeVar("Result")


class BlockingStream(Generic[Item, Result]):
    """A response, item by item. To stop it early, close it, or use `with`."""

    def __init__(self, thread: LoopThread[AsyncClient], stream: ResponseStream[Item, Result]):
        self._thread, self._stream = thread, stream

    @property
    def result(self) -> Result:
        """Return the result so far."""
        return self._stream.result

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> Item:
        """Wait for the next item. Raises IzwiError."""
        try:
            return self._thread.call(self._stream.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Stop the request."""
        self._thread.call(self._stream.aclose())


class Client:
    """Speech, transcription, alignment, chat and voices. Close it, or use `with`.

    `AsyncClient` documents its methods in detail. They may be called from any thread, also where an
    event loop is running, as in a notebook.

    Args:
        base_url: Address of a server; None loads models in this process, now.
        api_key: The server's API key.
        models: Models for this process to load: folders, hub ids and embedded names.
        runtime: Device, dtype and quantization of these models.

    Raises:
        IzwiError: The address is invalid, or a model cannot be loaded.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        models: Sequence[str] = DEFAULT_MODELS,
        runtime: RuntimeOptions | None = None,
    ):
        self._thread = LoopThread(
            lambda: AsyncClient(base_url, api_key=api_key, models=models, runtime=runtime)
        )
        self._client = self._thread.opened

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Stop all requests, and the engine if it is in this process."""
        self._thread.close()

    def say(self, text: str, **options: Unpack[SpeechOptions]) -> Audio:
        """Speak a text and return all of its audio."""
        return self._thread.call(self._client.say(text, **options))

    def stream_speech(
        self, text: str | Iterable[str], **options: Unpack[SpeechOptions]
    ) -> BlockingStream[Audio, SpeechDetails]:
        """Speak a text and stream its audio while it is generated.

        Args:
            text: The whole text, or an iterator over its pieces, split anywhere, which are spoken
                as they arrive.
            options: Options of the speech.
        """
        pieces = text if isinstance(text, str) else _asynchronous(text)
        return self._stream(self._client.stream_speech(pieces, **options))

    def transcribe(self, audio: AudioSource, **options: Unpack[TranscriptionOptions]) -> Transcript:
        """Transcribe audio."""
        return self._thread.call(self._client.transcribe(audio, **options))

    def stream_transcription(
        self, audio: AudioSource, **options: Unpack[TranscriptionOptions]
    ) -> BlockingStream[TranscriptUpdate, Transcript]:
        """Transcribe audio and stream the transcript."""
        return self._stream(self._client.stream_transcription(audio, **options))

    def align(
        self,
        audio: AudioSource,
        text: str,
        *,
        model: str | None = None,
        language: str | None = None,
    ) -> list[AlignedWord]:
        """Return the start and end of each word of a text in audio."""
        return self._thread.call(self._client.align(audio, text, model=model, language=language))

    def chat(self, messages: str | Sequence[Message], **options: Unpack[ChatOptions]) -> Answer:
        """Answer a conversation, or a single user message."""
        return self._thread.call(self._client.chat(messages, **options))

    def stream_chat(
        self, messages: str | Sequence[Message], **options: Unpack[ChatOptions]
    ) -> BlockingStream[ChatDelta, Answer]:
        """Answer a conversation, or a single user message, and stream the answer."""
        return self._stream(self._client.stream_chat(messages, **options))

    def draw(self, prompt: str, **options: Unpack[DrawOptions]) -> list[bytes]:
        """Draw images, and return their files. Only a server with `--images` does."""
        return self._thread.call(self._client.draw(prompt, **options))

    def talk(self, audio: AudioSource, **options: Unpack[TalkOptions]) -> SpokenAnswer:
        """Answer speech with speech."""
        return self._thread.call(self._client.talk(audio, **options))

    def stream_talk(
        self, audio: AudioSource, **options: Unpack[TalkOptions]
    ) -> BlockingStream[SpokenDelta, SpokenAnswer]:
        """Answer speech with speech and stream it."""
        return self._stream(self._client.stream_talk(audio, **options))

    def clone(
        self,
        name: str,
        clip: AudioSource,
        text: str | None = None,
        *,
        consent: str,
        x_vector_only: bool = False,
    ) -> dict[str, Any]:
        """Store a voice, so that requests can use it by name."""
        return self._thread.call(
            self._client.clone(name, clip, text, consent=consent, x_vector_only=x_vector_only)
        )

    def voices(self) -> list[dict[str, Any]]:
        """List the speakers of the models, the stored voices, and OpenAI's names."""
        return self._thread.call(self._client.voices())

    def delete_voice(self, key: str) -> None:
        """Delete a stored voice and its clip."""
        self._thread.call(self._client.delete_voice(key))

    def models(self) -> list[dict[str, Any]]:
        """List the served models: `id` is the name, `task` the task."""
        return self._thread.call(self._client.models())

    def metrics(self) -> str:
        """Return the server's metrics in the text format of Prometheus."""
        return self._thread.call(self._client.metrics())

    def _stream(self, stream: ResponseStream[Item, Result]) -> BlockingStream[Item, Result]:
        return BlockingStream(self._thread, stream)


async def _asynchronous(pieces: Iterable[str]) -> AsyncIterator[str]:
    """Iterate over the pieces in a thread, because the iterator may block."""
    rest, end = iter(pieces), object()
    while (piece := await asyncio.to_thread(next, rest, end)) is not end:
        yield str(piece)
