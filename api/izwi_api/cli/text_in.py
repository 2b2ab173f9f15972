"""Read text from stdin as it is written, and synthesise it meanwhile."""

from __future__ import annotations

import asyncio
import codecs
import io
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

from izwi.errors import EngineStopped, InvalidRequest
from izwi.request import Chunk
from izwi_api.services.speech_writer import SpeechWriter

_BLOCK_BYTES = 1 << 16
# Blocks that may wait; a faster writer blocks on the pipe.
_MAX_WAITING = 16


def stdin_reader() -> Callable[[int], bytes]:
    """Return how to read stdin: what is there comes at once, however little."""
    try:
        # Unbuffered, since a thread that waits inside sys.stdin holds a lock that exit needs.
        return io.FileIO(sys.stdin.fileno(), closefd=False).read
    except OSError:  # a stand-in without a descriptor
        return sys.stdin.buffer.read


class ArrivingText:
    """UTF-8 text that a thread reads while the event loop does other things.

    Made on the loop that will ask for it. The thread is a daemon: a terminal where nobody types
    keeps no process alive.
    """

    def __init__(self, read: Callable[[int], bytes]):
        self._read = read
        self._loop = asyncio.get_running_loop()
        self._pieces: deque[str] = deque()
        self._room = threading.Semaphore(_MAX_WAITING)
        self._news = asyncio.Event()
        self._ended = False
        self._error: Exception | None = None
        threading.Thread(target=self._run, name="izwi-stdin", daemon=True).start()

    def arrived(self) -> tuple[str, bool]:
        """Take what is there without waiting; the flag says whether that was the end.

        Raises:
            InvalidRequest: It is not UTF-8.
            OSError: It cannot be read.
        """
        ended = self._ended  # before the pieces: all of them were there when it was set
        text = []
        while self._pieces:
            text.append(self._pieces.popleft())
            self._room.release()
        if ended and self._error is not None:
            raise self._error
        return "".join(text), ended

    async def pieces(self) -> AsyncGenerator[str]:
        """Yield what comes until the end; raises as `arrived`."""
        ended = False
        while not ended:
            self._news.clear()
            text, ended = self.arrived()
            if text:
                yield text
            elif not ended:
                await self._news.wait()

    async def whole(self) -> str:
        """Wait for the end and return all that was not taken yet; raises as `arrived`."""
        return "".join([piece async for piece in self.pieces()])

    def _run(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while content := self._read(_BLOCK_BYTES):
                self._room.acquire()
                self._pieces.append(decoder.decode(content))
                self._tell()
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            self._error = InvalidRequest("the text on stdin is not UTF-8", param="text")
        except OSError as error:
            self._error = error
        self._ended = True
        self._tell()

    def _tell(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: there is no reader any more
            self._loop.call_soon_threadsafe(self._news.set)


class DictatedSpeech:
    """The sound of a text that is still arriving. Call `abort` to stop early.

    Attributes:
        sample_rate: Of the sound, in Hz.
    """

    def __init__(self, writer: SpeechWriter, begun: str, text: ArrivingText):
        """Say `begun`, and then what comes."""
        self.sample_rate = writer.sample_rate
        self._writer, self._begun, self._text = writer, begun, text

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield the chunks in order, up to the end of the text.

        Raises:
            IzwiError: It cannot be said, or the engine failed.
            OSError: The text cannot be read.
        """
        writing = asyncio.create_task(self._write())
        chunks = self._writer.chunks()
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
        except EngineStopped:
            if writing.done():
                await writing  # if the text broke off, that is the reason
            raise
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    def abort(self) -> None:
        """Stop what still runs."""
        self._writer.abort()

    async def _write(self) -> None:
        try:
            await self._writer.write(self._begun)
            async for piece in self._text.pieces():
                await self._writer.write(piece)
            await self._writer.close()
        except BaseException:
            self._writer.abort()
            raise
