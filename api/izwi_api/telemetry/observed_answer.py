"""An answer whose chunks are noted as they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from izwi.engine_client.protocol import Answer
from izwi.request.request import Chunk
from izwi_api.telemetry.engine_request import EngineRequest


class ObservedAnswer(Answer):
    """Passes on an answer, and notes what its reader sees of it.

    Args:
        answer: The answer.
        request: Its request, to which the chunks are added.
        sample_rate: Of the model's audio, in Hz; None without audio.
        clock: Seconds, monotonic.
        on_end: Called once, when the last chunk was read or the reader has left.
    """

    def __init__(
        self,
        answer: Answer,
        request: EngineRequest,
        sample_rate: int | None,
        clock: Callable[[], float],
        on_end: Callable[[EngineRequest], None],
    ):
        self._answer, self._request, self._rate = answer, request, sample_rate
        self._clock, self._on_end = clock, on_end

    async def __anext__(self) -> Chunk:
        chunk = await self._answer.__anext__()
        request = self._request
        is_open = request.ended_s is None
        request.add_chunk(chunk, self._rate, self._clock())
        if is_open and request.ended_s is not None:
            self._on_end(request)
        return chunk

    def write(self, text_ids: Sequence[int], closed: bool) -> None:
        """See `Answer.write`."""
        self._answer.write(text_ids, closed)

    def pause(self) -> None:
        """See `Answer.pause`."""
        self._answer.pause()

    def resume(self) -> None:
        """See `Answer.resume`."""
        self._answer.resume()

    def abort(self) -> None:
        """See `Answer.abort`."""
        self._answer.abort()
        if self._request.ended_s is None:
            self._request.end(self._clock())
            self._on_end(self._request)
