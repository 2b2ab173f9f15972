"""Hold back an answer's audio until its playback will not run dry; see `playback_start`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

from izwi_api.realtime.answering.audio import EncodedAudio
from izwi_api.realtime.answering.playback_start import learned_start_ms, safe_start_ms
from izwi_api.services.chat.answer import AnswerDelta
from izwi_api.services.production_pace import AudioChunk, ProductionPace

Piece = AnswerDelta | EncodedAudio


class Prebuffer:
    """Passes the pieces of one answer on, in their order.

    Args:
        pace: The pace of earlier answers; this one's is added.
    """

    def __init__(self, pace: ProductionPace):
        self._pace = pace
        self._waiting: list[Piece] = []
        self._chunks: list[AudioChunk] = []  # among them
        self._measured: list[AudioChunk] = []  # since the answer began, or was paused
        self._is_first = True  # nothing came between the answer's start and `_measured`

    def skip_pause(self) -> None:
        """Note that the models pause: the time until the next chunk says nothing of their pace."""
        self._learn()
        self._measured, self._is_first = [], False

    async def pieces(
        self, source: AsyncGenerator[Piece], is_dry: Callable[[], bool]
    ) -> AsyncGenerator[Piece]:
        """Yield the pieces: text before the audio at once, the rest when playback may begin.

        Args:
            source: The pieces as they are made.
            is_dry: Returns whether the client has played all that it was sent.
        """
        pending: asyncio.Future[Piece | None] | None = None
        try:
            while True:
                pending = pending or asyncio.ensure_future(_next(source))
                wait_s = self._wait_s() if self._chunks else None
                if (await asyncio.wait({pending}, timeout=wait_s))[0]:
                    piece, pending = pending.result(), None
                    if piece is None:
                        break
                    self._add_piece(piece, is_dry)
                if not self._chunks or self._wait_s() <= 0.0:
                    for ready in self._flushed():
                        yield ready
            for ready in self._flushed():
                yield ready
        finally:
            self._learn()
            if pending is not None:
                pending.cancel()
                await asyncio.gather(pending, return_exceptions=True)

    def _add_piece(self, piece: Piece, is_dry: Callable[[], bool]) -> None:
        self._waiting.append(piece)
        if isinstance(piece, EncodedAudio) and piece.chunk is not None:
            self._measured.append(piece.chunk)
            if self._chunks or is_dry():
                self._chunks.append(piece.chunk)

    def _wait_s(self) -> float:
        pace = self._pace
        if self._is_first and pace.answers:
            start_ms = learned_start_ms(self._chunks, self._measured, pace.answers)
        else:
            start_ms = safe_start_ms(self._chunks, self._measured, pace.rate, pace.longest_ms)
        return start_ms / 1000 - time.monotonic()

    def _flushed(self) -> list[Piece]:
        flushed, self._waiting, self._chunks = self._waiting, [], []
        return flushed

    def _learn(self) -> None:
        if self._is_first:
            self._pace.learn(self._measured)
            self._is_first = False


async def _next(source: AsyncGenerator[Piece]) -> Piece | None:
    return await anext(source, None)
