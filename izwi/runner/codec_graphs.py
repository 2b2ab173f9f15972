"""Chunks of sound as recorded graphs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from izwi.cache.state import StateArena
from izwi.cache.transfer import HostCopy
from izwi.model import SpeechModel
from izwi.runner.recorder import Recorded, Recorder, fitting

# Waits for samples, (n,) float32, that are being made.
Sound = Callable[[], npt.NDArray[np.float32]]

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class CodecGraphs:
    """Chunks of sound for batches of streams, their state gathered and scattered inside."""

    def __init__(
        self,
        model: SpeechModel,
        arena: StateArena,
        recorder: Recorder,
        max_rows: int,
        ramp: Seq[int],
        device: torch.device,
    ):
        self._model, self._arena, self._recorder, self._device = model, arena, recorder, device
        self._sizes = fitting(_SIZES, max_rows)
        self._frames = sorted(set(ramp))
        self._graphs: dict[tuple[int, int], tuple[Recorded, Tensor, Tensor, Tensor]] = {}

    def takes(self, frames: int) -> bool:
        """Whether chunks of so many frames can be made here."""
        return frames <= self._frames[-1]

    def vocode(self, chunks: Seq[npt.NDArray[np.int64]], rows: Seq[int]) -> list[Sound]:
        """Begin to make the next frames of streams, short chunks first.

        What was begun before must have been awaited: its buffers are used again.

        Args:
            chunks: (frames, codebooks) of each stream. A count that is not in the ramp is the end
                of a stream, whose state nobody reads again: it is padded.
            rows: State row of each stream.

        Returns:
            Of each stream, what waits for its samples.
        """
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for place, chunk in enumerate(chunks):
            groups[next(n for n in self._frames if n >= len(chunk))].append(place)
        sounds: dict[int, Sound] = {}
        for frames, places in sorted(groups.items()):
            copy = HostCopy([self._replay(frames, places, chunks, rows)])
            for line, place in enumerate(places):
                length = len(chunks[place]) * self._model.frame_samples
                sounds[place] = partial(_awaited, copy, line, length)
        return [sounds[place] for place in range(len(chunks))]

    def _replay(
        self,
        frames: int,
        places: Seq[int],
        chunks: Seq[npt.NDArray[np.int64]],
        rows: Seq[int],
    ) -> Tensor:
        """Run some of the chunks, padded to so many frames; valid until the next replay."""
        size = next(size for size in self._sizes if size >= len(places))
        graph, sound, host, device = self._graph(size, frames)
        filled = host.numpy()
        filled[:] = 0
        filled[:, 0] = self._arena.spare_row
        for line, place in zip(filled, places, strict=False):
            line[0] = rows[place]
            line[1 : 1 + chunks[place].size] = chunks[place].ravel()
        device.copy_(host, non_blocking=True)
        graph.replay()
        return sound[: len(places)]

    def warm_up(self) -> None:
        """Record all of them."""
        for size in reversed(self._sizes):
            for frames in reversed(self._frames):
                self._graph(size, frames)

    def _graph(self, size: int, frames: int) -> tuple[Recorded, Tensor, Tensor, Tensor]:
        if (size, frames) not in self._graphs:
            books = self._model.num_codebooks
            pinned = self._device.type == "cuda"
            host = torch.zeros(size, 1 + frames * books, dtype=torch.int64, pin_memory=pinned)
            host[:, 0] = self._arena.spare_row
            device = host.to(self._device, copy=True)

            def run() -> Tensor:
                rows = device[:, 0].contiguous()
                codes = device[:, 1:].reshape(size, frames, books)
                sound, state = self._model.vocode(codes, self._arena.gather(rows))
                self._arena.scatter(rows, state)
                return sound.float()  # type: ignore[no-any-return]

            self._graphs[size, frames] = (*self._recorder.capture(run), host, device)
        return self._graphs[size, frames]


def _awaited(copy: HostCopy, line: int, length: int) -> npt.NDArray[np.float32]:
    """The first samples of one stream of a batch."""
    samples: npt.NDArray[np.float32] = copy.wait()[0][line, :length].numpy()
    return samples
