"""Read text from stdin as it is written."""

from __future__ import annotations

import asyncio
import codecs
import io
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

from izwi.errors import InvalidRequest

_BLOCK_BYTES = 1 << 16
# Blocks that may be queued; a faster writer blocks on the pipe.
_MAX_WAITING = 16
# A complete text, as `echo` writes it, has been read after this time.
_PATIENCE_S = 0.1


def stdin_reader() -> Callable[[int], bytes]:
    """Return a function that reads stdin; available bytes are returned at once."""
    try:
        # Unbuffered, because a thread that waits inside sys.stdin holds a lock that exit needs.
        return io.FileIO(sys.stdin.fileno(), closefd=False).read
    except OSError:  # a replacement without a descriptor
        return sys.stdin.buffer.read


class ArrivingText:
    """UTF-8 text that a thread reads while the event loop continues.

    Create it on the event loop that reads it. The thread is a daemon, so that an unused terminal
    does not keep the process alive.
    """

    def __init__(self, read: Callable[[int], bytes]):
        self._read = read
        self._loop = asyncio.get_running_loop()
        self._pieces: deque[str] = deque()
        self._room = threading.Semaphore(_MAX_WAITING)
        self._changed, self._end = asyncio.Event(), asyncio.Event()
        self._ended = False
        self._error: Exception | None = None
        threading.Thread(target=self._run, name="izwi-stdin", daemon=True).start()

    def arrived(self) -> tuple[str, bool]:
        """Return the text that has arrived, without waiting, and whether it is complete.

        Raises:
            InvalidRequest: It is not UTF-8.
            OSError: It cannot be read.
        """
        ended = self._ended  # read first: all pieces were there when it was set
        text = []
        while self._pieces:
            text.append(self._pieces.popleft())
            self._room.release()
        if ended and self._error is not None:
            raise self._error
        return "".join(text), ended

    async def pieces(self) -> AsyncGenerator[str]:
        """Yield text as it arrives, until its end; raises as `arrived`."""
        ended = False
        while not ended:
            self._changed.clear()
            text, ended = self.arrived()
            if text:
                yield text
            elif not ended:
                await self._changed.wait()

    async def whole_or_pieces(self, max_chars: int) -> str | AsyncGenerator[str]:
        """Return the text if it is complete and short, else its pieces; raises as `arrived`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._end.wait()
        text, is_complete = self.arrived()
        return text if is_complete and len(text) <= max_chars else self._after(text)

    async def _after(self, text: str) -> AsyncGenerator[str]:
        yield text
        async for piece in self.pieces():
            yield piece

    def _run(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while content := self._read(_BLOCK_BYTES):
                self._room.acquire()
                self._pieces.append(decoder.decode(content))
                self._wake_reader()
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            self._error = InvalidRequest("the text on stdin is not UTF-8", param="text")
        except OSError as error:
            self._error = error
        self._ended = True
        self._wake_reader()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end.set)

    def _wake_reader(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, so nothing reads any more
            self._loop.call_soon_threadsafe(self._changed.set)
