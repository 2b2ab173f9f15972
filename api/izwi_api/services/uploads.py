"""Uploads in progress: only so many files are read, decoded and in the engine; the others wait.

An upload waits before its body is read. It then costs a connection, but neither memory nor
processor time, and the client's system stops sending. A file counts by its pieces, which are
requests for the engine, so an hour of audio counts more than a sentence; an hour takes no more
pieces than its share while others wait. Files of several callers enter in turns (ADR 31).
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from izwi.errors import Overloaded
from izwi.fairness.callers import current_caller
from izwi.fairness.queue import FairQueue, may_queue
from izwi_api.settings import MAX_UPLOAD_PIECES

MAX_WAITING = 512
MAX_WAIT_S = 120.0
# Seconds after which a file whose client is slow counts nothing.
_PATIENCE_S = 2.0
# Pieces that every file may have in flight: one runs while the text of the other is read.
_MIN_PIECES = 2
# Pieces of a file that is not decoded yet: the average, but enough that no more files enter than
# wait for a decoder.
_FIRST_GUESS, _LEAST_GUESS = 8.0, 4
_NEW_WEIGHT = 0.125


class Upload:
    """A file in progress: from before its body is read until its answer is complete.

    A context manager that ends it.

    Attributes:
        caller: Whose file it is.
        num_pieces: Pieces that it counts: those in flight, or a guess before it is cut.
    """

    def __init__(self, uploads: Uploads, caller: str, num_pieces: int):
        self._uploads = uploads
        self.caller, self.num_pieces = caller, num_pieces
        self._counts = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_counting()

    def most_in_flight(self, num_pieces: int) -> int:
        """Return how many pieces it may have in flight now; at least one, if it has any.

        Args:
            num_pieces: How many it would have if it were alone.
        """
        return min(num_pieces, max(_MIN_PIECES, self._uploads.share_of(self)))

    def expect(self, num_pieces: int) -> None:
        """Expect of later files what is known of this one: its pieces if it were alone."""
        self._uploads.expect(num_pieces)

    def count(self, num_pieces: int) -> None:
        """Count so many pieces in flight."""
        num_pieces = max(1, num_pieces)
        before, self.num_pieces = self.num_pieces, num_pieces
        if self._counts:
            self._uploads.recount(self.caller, num_pieces - before)

    @contextmanager
    def client_acts(self) -> Iterator[None]:
        """Until the block ends, the client sends or reads; if that takes long, count nothing."""
        timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self.stop_counting)
        try:
            yield
        finally:
            timer.cancel()

    async def wait_for_turn(self) -> None:
        """Wait until the file may go on, and count it; do nothing if it counts.

        Raises:
            Overloaded: Too many files wait, or it would wait for too long.
        """
        if not self._counts:
            await self._uploads.wait_for_turn(self)

    def go_on(self) -> None:
        """Count it, without waiting: it may go on, or its answer has begun."""
        if not self._counts:
            self._counts = True
            self._uploads.add(self)

    def stop_counting(self) -> None:
        """Count nothing: the file has ended, or its client is slow."""
        if self._counts:
            self._counts = False
            self._uploads.remove(self)


class Uploads:
    """The uploads of one API server. Lives on its event loop.

    Args:
        max_pieces: Pieces of all files in progress. A caller with less than an equal part of them
            may add more, and every file has a few.
        max_waiting: Files that wait, likewise.
        max_wait_s: Seconds after which a file that waits is refused.
        clock: Monotonic time in seconds.
        spread: Returns numbers from 0 to 1, so that refused clients return at different times.
    """

    def __init__(
        self,
        max_pieces: int = MAX_UPLOAD_PIECES,
        max_waiting: int = MAX_WAITING,
        max_wait_s: float = MAX_WAIT_S,
        clock: Callable[[], float] = time.monotonic,
        spread: Callable[[], float] = random.random,
    ):
        self._max_pieces, self._max_waiting, self._max_wait_s = max_pieces, max_waiting, max_wait_s
        self._clock, self._spread = clock, spread
        self._pieces, self._files = Counter[str](), Counter[str]()  # in progress, by caller
        self._line = FairQueue[tuple[Upload, asyncio.Future[None]]]()
        self._waiting = Counter[str]()  # without those that left
        self._guess = _FIRST_GUESS
        self._gap_s = 0.0  # average time between two that enter while others wait
        self._entered_s = 0.0  # when the last one entered, or the first one began to wait

    @property
    def num_in_progress(self) -> int:
        """Files in progress."""
        return self._files.total()

    @property
    def num_waiting(self) -> int:
        """Files that wait."""
        return self._waiting.total()

    async def enter(self) -> Upload:
        """Wait until a file of the current caller may be read, and return it.

        Raises:
            Overloaded: Too many files wait, or it would wait for too long.
        """
        guess = max(_LEAST_GUESS, math.ceil(self._guess))
        upload = Upload(self, current_caller.get(), guess)
        await self.wait_for_turn(upload)
        return upload

    def expect(self, num_pieces: int) -> None:
        """See `Upload.expect`."""
        self._guess += _NEW_WEIGHT * (num_pieces - self._guess)

    def share_of(self, upload: Upload) -> int:
        """Return how many pieces a file may have in flight: an equal share, or what is free."""
        caller = upload.caller
        # a file that waits is about to have a share
        num_files = self._files[caller] + (caller in self._waiting)
        share = self._max_pieces // len(self._pieces) // num_files
        if self._waiting:
            return share
        return max(share, self._max_pieces - self._pieces.total() + upload.num_pieces)

    async def wait_for_turn(self, upload: Upload) -> None:
        """Wait until a file may go on; raises as `enter`."""
        caller = upload.caller
        if self._may_enter(upload):
            upload.go_on()
            return
        wait_s = self._expected_s(caller)
        if wait_s > self._max_wait_s or not may_queue(self._waiting, caller, self._max_waiting):
            raise self._refusal(wait_s)
        if not self._waiting:
            self._entered_s = self._clock()
        turn = asyncio.get_running_loop().create_future()
        self._line.put(caller, upload.num_pieces, (upload, turn))
        self._waiting[caller] += 1
        try:
            async with asyncio.timeout(self._max_wait_s):
                await turn
        except TimeoutError:
            self._leave_line(upload, turn)
            raise self._refusal(self._expected_s(caller)) from None
        except asyncio.CancelledError:
            self._leave_line(upload, turn)
            raise

    def add(self, upload: Upload) -> None:
        """Count a file."""
        self._pieces[upload.caller] += upload.num_pieces
        self._files[upload.caller] += 1

    def remove(self, upload: Upload) -> None:
        """Stop counting a file."""
        self._files[upload.caller] -= 1
        self._pieces[upload.caller] -= upload.num_pieces
        if not self._files[upload.caller]:
            del self._files[upload.caller], self._pieces[upload.caller]
        self._give_turns()

    def recount(self, caller: str, more: int) -> None:
        """Count more pieces of a file in progress, or less."""
        self._pieces[caller] += more
        self._give_turns()

    def _may_enter(self, upload: Upload) -> bool:
        """Whether pieces are free, or the caller has less than an equal part with this file."""
        if self._pieces.total() < self._max_pieces:
            return True
        num_callers = len(self._pieces) + (upload.caller not in self._pieces)
        mine = self._pieces[upload.caller] + upload.num_pieces
        return mine <= self._max_pieces // num_callers

    def _give_turns(self) -> None:
        while self._waiting and self._pieces.total() < self._max_pieces:
            upload, turn = self._line.pop()
            if turn.done():  # its caller has left
                continue
            self._stop_waiting(upload.caller)
            now_s = self._clock()
            self._gap_s += _NEW_WEIGHT * (now_s - self._entered_s - self._gap_s)
            self._entered_s = now_s
            upload.go_on()
            turn.set_result(None)

    def _leave_line(self, upload: Upload, turn: asyncio.Future[None]) -> None:
        if turn.cancelled():
            self._stop_waiting(upload.caller)
        else:  # it had its turn at the same moment
            upload.stop_counting()

    def _stop_waiting(self, caller: str) -> None:
        self._waiting[caller] -= 1
        if not self._waiting[caller]:
            del self._waiting[caller]
        if not self._waiting:  # the line has only some that left
            self._line = FairQueue()

    def _expected_s(self, caller: str) -> float:
        """Return how long one more file of a caller would wait."""
        mine = self._waiting[caller] + 1
        num_callers = len(self._waiting) + (caller not in self._waiting)
        place = min(self._waiting.total() + 1, mine * num_callers)
        since_s = self._clock() - self._entered_s if self._waiting else 0.0
        return place * max(self._gap_s, since_s)

    def _refusal(self, wait_s: float) -> Overloaded:
        retry_after_s = max(1, math.ceil(wait_s * (0.5 + self._spread())))
        return Overloaded(
            f"{self.num_waiting} files wait already to be read; try again in {retry_after_s} s",
            retry_after_s=retry_after_s,
        )
