"""One model on several ranks, as rank 0 sees the others: it plans and tells, they follow.

Every rank runs the same steps over its own heads, pages and weights. Audio encoders and codecs run
on rank 0 alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from izwi.backends.protocol import PagedKV
from izwi.host.rank_links import FollowerProcesses
from izwi.model.step_batch import StepBatch
from izwi.request.serialization import Frame, encode
from izwi.runner.rank_orders import CopyPages, ReadPages, StepEncoder, WritePages


class RankFailed(BaseException):
    """A step cannot end, because it failed on one rank only, or a rank is gone.

    The others wait for it in its midst. So this ends the step thread, and with it the engine; the
    next one resumes its requests from their logs.
    """


class Followers:
    """The other ranks of one model, as rank 0 tells them what to do."""

    def __init__(self, processes: FollowerProcesses, model: int, steps: StepEncoder):
        """Set up.

        Args:
            processes: The ranks.
            model: The model's number: models have the same ones on all ranks.
            steps: Makes orders of its batches.
        """
        self._processes, self.model, self._steps = processes, model, steps

    @contextmanager
    def running(self, batch: StepBatch, *, launched: bool) -> Iterator[None]:
        """Let the other ranks run a batch beside the work inside.

        Raises:
            InvalidRequest: A row's grammar cannot be used. No rank has begun the step.
            RankFailed: The step failed here, or a rank is gone: the others wait in its midst.
        """
        frames = self._steps.encode(batch, launched=launched)
        self.send(frames)
        try:
            yield
        except Exception as error:
            raise RankFailed(f"a step failed on rank 0 alone: {error}") from error

    def send(self, frames: Sequence[Frame]) -> None:
        """Send an order. Raises RankFailed."""
        try:
            self._processes.send(frames)
        except OSError as error:
            raise RankFailed("a rank of this engine has ended") from error

    def replies(self) -> list[list[bytes]]:
        """Wait for a reply of each rank. Raises RankFailed."""
        try:
            return self._processes.replies()
        except EOFError as error:
            raise RankFailed("a rank of this engine has ended") from error


class RankedPages:
    """The pages of all ranks as one: what tiers read, write and copy."""

    def __init__(self, kv: PagedKV, followers: Followers, page_bytes: int):
        """Set up.

        Args:
            kv: This rank's pages.
            followers: The other ranks.
            page_bytes: Bytes of one rank's page.
        """
        self._kv, self._followers, self._page_bytes = kv, followers, page_bytes
        self.page_size = kv.page_size

    def copy(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """See `PagedKV.copy`."""
        if moves:
            self._followers.send(encode(CopyPages(self._followers.model, list(moves))))
        self._kv.copy(moves)

    def read_pages(self, pages: Sequence[int]) -> npt.NDArray[np.uint8]:
        """Return (pages, bytes of all ranks' pages), in the order of the ranks."""
        self._followers.send(encode(ReadPages(self._followers.model, list(pages))))
        parts = [self._kv.read_pages(pages)]
        for (content,) in self._followers.replies():
            parts.append(np.frombuffer(content, np.uint8).reshape(parts[0].shape))
        return np.concatenate(parts, 1)

    def write_pages(self, pages: Sequence[int], data: npt.NDArray[np.uint8]) -> None:
        """Restore the result of `read_pages`."""
        parts = data.reshape(len(pages), -1, self._page_bytes).swapaxes(0, 1)  # (ranks, pages, _)
        parts = np.ascontiguousarray(parts)
        self._followers.send(encode(WritePages(self._followers.model, list(pages), parts)))
        self._kv.write_pages(pages, parts[0])
