"""The answer to one request, for an asyncio reader. Knows no engine and no torch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from izwi.arrays import Int64
from izwi.engine_client.protocol import Answer
from izwi.request.request import Chunk, Reason


class Source(Protocol):
    """The source of a stream's chunks: an engine in this process or another.

    Commands about a request take effect before its next step, in the order in which they are given.
    They do nothing if it has ended.
    """

    @property
    def max_backlog(self) -> int:
        """Unread chunks at which backpressure stops the request."""
        ...

    def write(self, request_id: str, text_ids: Sequence[int], closed: bool) -> None:
        """Add text ids to a request with open input; `closed`: nothing more will be written."""
        ...

    def pause(self, request_id: str) -> None:
        """Pause a request before the next step."""
        ...

    def resume(self, request_id: str) -> None:
        """Resume a paused request with the next sample or token."""
        ...

    def abort(self, request_id: str) -> None:
        """End a request before the next step."""
        ...

    def set_backpressure(self, request_id: str, backpressured: bool) -> None:
        """Turn backpressure on or off for a request."""
        ...


class Stream(Answer):
    """An answer whose chunks are queued as they arrive, in order; the last one has a reason."""

    def __init__(self, request_id: str, source: Source, loop: asyncio.AbstractEventLoop):
        self.request_id = request_id
        self._source = source
        self._loop = loop
        self._queue: asyncio.Queue[Chunk] = asyncio.Queue()
        self._ended = False
        self._backpressured = False

    async def __anext__(self) -> Chunk:
        if self._ended and self._queue.empty():
            raise StopAsyncIteration
        chunk = await self._queue.get()
        backlog = self._queue.qsize()
        if self._backpressured and not self._ended and backlog <= self._source.max_backlog // 2:
            self._backpressured = False
            self._source.set_backpressure(self.request_id, False)
        return chunk

    def write(self, text_ids: Sequence[int], closed: bool) -> None:
        """See `Answer.write`."""
        if not self._ended:
            self._source.write(self.request_id, text_ids, closed)

    def pause(self) -> None:
        """See `Answer.pause`."""
        if not self._ended:
            self._source.pause(self.request_id)

    def resume(self) -> None:
        """See `Answer.resume`."""
        if not self._ended:
            self._source.resume(self.request_id)

    def abort(self) -> None:
        """See `Answer.abort`."""
        if not self._ended:
            self._source.abort(self.request_id)

    def move(self, source: Source) -> None:
        """Send further commands to another source, which goes on with the request."""
        self._source = source

    def deliver(self, chunk: Chunk) -> None:
        """Add a chunk from another thread than the reader's."""
        try:
            self._loop.call_soon_threadsafe(self.put, chunk)
        except RuntimeError:  # the reader's event loop is closed
            self._ended = True
            if chunk.reason is None:
                self._source.abort(self.request_id)

    def put(self, chunk: Chunk) -> None:
        """Add a chunk in the reader's event loop; a reader far behind causes backpressure.

        After the last chunk the request is neither aborted nor stopped: its id may be in use again.
        """
        self._queue.put_nowait(chunk)
        if chunk.reason is not None:
            self._ended = True
        elif not self._backpressured and self._queue.qsize() >= self._source.max_backlog:
            self._backpressured = True
            self._source.set_backpressure(self.request_id, True)


def failure(request_id: str, error: BaseException) -> Chunk:
    """Return the last chunk of a request that failed."""
    return Chunk(request_id, _no_entries(), reason=Reason.ERROR, error=error)


def aborted(request_id: str) -> Chunk:
    """Return the last chunk of an aborted request."""
    return Chunk(request_id, _no_entries(), reason=Reason.ABORTED)


def _no_entries() -> Int64:
    return np.zeros((0, 0), dtype=np.int64)
