"""The audio of an answer in the client's format: without silence at its start, at its speed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from izwi.audio.tempo import StreamTempo
from izwi_api.realtime.answering.lead_in import LeadIn
from izwi_api.realtime.answering.live_answer import LiveAnswer
from izwi_api.realtime.protocol.formats import OutputEncoder, WireFormat
from izwi_api.services.chat.answer import AnswerDelta
from izwi_api.services.chat.cascade import AudioPiece
from izwi_api.services.production_pace import AudioChunk


@dataclass(frozen=True, slots=True)
class EncodedAudio:
    """Audio of an answer in the client's format; `chunk` says when it was made, and how long it is.

    `chunk` is None for what the encoder still had at the end.
    """

    data: bytes
    chunk: AudioChunk | None = None


class AnswerEncoder:
    """Encodes one answer.

    Args:
        wire: Format of the client.
        rate: Sample rate of the answer, in Hz.
        speed: Playback speed.
    """

    def __init__(self, wire: WireFormat, rate: int, speed: float):
        self._wire, self._rate, self._speed = wire, rate, speed
        self._lead_in = LeadIn(rate)
        self._tempo = StreamTempo(rate, speed)
        self._encoder = OutputEncoder(wire, rate)

    def write(self, piece: AudioPiece) -> EncodedAudio:
        """Encode a piece."""
        data = self._encoder.write(self._tempo.write(self._lead_in.cut(piece.pcm)))
        audio_ms = 1000 * len(piece.pcm) / self._rate / self._speed
        chunk = AudioChunk(1000 * piece.made_s, audio_ms, self._wire.duration_ms(len(data)))
        return EncodedAudio(data, chunk)

    def finish(self) -> EncodedAudio:
        """Return the rest."""
        return EncodedAudio(self._encoder.write(self._tempo.finish()) + self._encoder.finish())


async def encoded_pieces(
    answer: LiveAnswer, wire: WireFormat | None, speed: float
) -> AsyncGenerator[AnswerDelta | EncodedAudio]:
    """Yield the text and the encoded audio of an answer. Raises IzwiError.

    Args:
        answer: The answer.
        wire: Format of the client; None for text only.
        speed: Playback speed of the audio.
    """
    encoder = None
    if wire is not None and answer.sample_rate is not None:
        encoder = AnswerEncoder(wire, answer.sample_rate, speed)
    async with aclosing(answer.pieces()) as pieces:
        async for piece in pieces:
            if isinstance(piece, AnswerDelta):
                yield piece
            elif encoder is not None:
                yield encoder.write(piece)
    if encoder is not None:
        yield encoder.finish()
