"""Encoded audio as the messages of a speech session: start, data, end."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Sequence

from izwi.model.alignment import AlignedWord
from izwi_api.schemas.alignment import word_json
from izwi_api.schemas.speech_stream import SessionConfig

# Sends JSON, or bytes unchanged.
Send = Callable[[dict[str, object] | bytes], Awaitable[None]]


class AudioMessages:
    """One audio file on its way to the client.

    Attributes:
        is_begun: The start message was sent.
    """

    def __init__(self, send: Send, config: SessionConfig, place: dict[str, int]):
        self.is_begun = False
        self._send, self._config, self._place = send, config, place
        self._num_bytes = self._num_messages = 0
        self._buffered = bytearray()
        self._words: list[AlignedWord] = []  # not sent yet

    async def send_start(self, text: str, rate: int) -> None:
        """Send the start message."""
        self.is_begun = True
        await self._send(
            {
                "type": "audio.start",
                **self._place,
                "sentence_text": text,
                "format": self._config.response_format,
                "sample_rate": rate,
                "channels": 1,
            }
        )

    async def write(self, piece: bytes) -> None:
        """Send the next bytes, or keep them for one message at the end."""
        self._num_bytes += len(piece)
        if self._config.stream_audio:
            await self._send_audio(piece)
        else:
            self._buffered += piece

    def add_words(self, words: Sequence[AlignedWord]) -> None:
        """Send the times of words with the next bytes, or at the end."""
        self._words += words

    async def end(self, failed: bool) -> None:
        """Send the end message, also after a failure."""
        if (self._buffered or self._words) and not failed:
            await self._send_audio(bytes(self._buffered))
        await self._send(
            {"type": "audio.done", **self._place, "total_bytes": self._num_bytes, "error": failed}
        )

    async def _send_audio(self, piece: bytes) -> None:
        if self._config.audio_encoding == "binary":
            await self._send(piece)
            return
        words, self._words = self._words, []
        chunk = {"chunk_id": self._num_messages, "audio_b64": base64.b64encode(piece).decode()}
        times = {"timestamps": list(map(word_json, words)) or None}
        self._num_messages += 1
        await self._send({"type": "audio.chunk", **self._place, **chunk, **times})
