"""Decode chunks of audio with captured graphs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from izwi.backends.protocol import PendingAudio
from izwi.backends.torch.captured.capturer import CapturedGraph, GraphCapturer, fitting
from izwi.backends.torch.state import StateArena
from izwi.backends.torch.transfer import HostCopy
from izwi.model.tracks import Track

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
# Chunk sizes for decoding only the state of one stream: a clip is cut into chunks of these sizes.
_HEARD = (1, 2, 4, 8, 16, 32, 64)


@dataclass(slots=True, eq=False)
class _Batch:
    """The graph of one batch size and its input buffers.

    Attributes:
        graph: Gives (size, samples) float32.
        host: (size, 1 + frames * codebooks) int64: the state's row, then the frames.
        device: The same on the device, where the graph reads it.
    """

    graph: CapturedGraph
    host: Tensor
    device: Tensor
    sent: torch.cuda.Event | None = None

    def send(self) -> None:
        """Copy the inputs to the device, in order on its stream."""
        self.device.copy_(self.host, non_blocking=True)
        if self.device.device.type == "cuda":
            self.sent = self.sent or torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.sent.record()

    def wait(self) -> None:
        """Wait until `host` may be refilled: a failed batch may have left its copy in flight."""
        if self.sent is not None:
            self.sent.synchronize()


class CodecGraphs:
    """Decodes audio chunks of batches of streams; gathers and scatters their state itself."""

    def __init__(
        self,
        track: Track,
        arena: StateArena,
        capturer: GraphCapturer,
        max_rows: int,
        ramp: Seq[int],
        device: torch.device,
    ):
        assert track.codec is not None
        self._codec, self._num_codebooks = track.codec, track.num_codebooks
        self._arena, self._capturer, self._device = arena, capturer, device
        self._sizes = fitting(_SIZES, max_rows)
        self._frames = sorted({1, *ramp})
        self._graphs: dict[tuple[int, int], _Batch] = {}
        self._heard = sorted({1, *ramp, *(_HEARD if track.codec.warms_up else ())}, reverse=True)

    def takes(self, frames: int) -> bool:
        """Return whether chunks of this many frames are supported."""
        return frames <= self._frames[-1]

    def vocode(self, chunks: Seq[npt.NDArray[np.int64]], rows: Seq[int]) -> list[PendingAudio]:
        """Start to decode the next frames of streams, short chunks first.

        Rows are marked as invalid before they are overwritten; the caller commits them.
        The results of the previous call must have been awaited, because its buffers are reused.

        Args:
            chunks: (frames, codebooks) of each stream. A length that is neither in the ramp nor 1
                is padded; it must be the end of a stream, whose state is not read again.
            rows: State row of each stream.

        Returns:
            For each stream a function that waits for its samples.
        """
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for place, chunk in enumerate(chunks):
            groups[next(n for n in self._frames if n >= len(chunk))].append(place)
        pending: dict[int, PendingAudio] = {}
        for frames, places in sorted(groups.items()):
            copy = HostCopy([self._launch(frames, places, chunks, rows)])
            for line, place in enumerate(places):
                length = len(chunks[place]) * self._codec.frame_samples
                pending[place] = partial(_awaited, copy, line, length)
        return [pending[place] for place in range(len(chunks))]

    def _launch(
        self,
        frames: int,
        places: Seq[int],
        chunks: Seq[npt.NDArray[np.int64]],
        rows: Seq[int],
    ) -> Tensor:
        """Run some chunks, padded to `frames`; the result is valid until the next launch."""
        size = next(size for size in self._sizes if size >= len(places))
        batch = self._graph(size, frames)
        batch.wait()
        filled = batch.host.numpy()
        filled[:] = 0
        filled[:, 0] = self._arena.spare_row
        for line, place in zip(filled, places, strict=False):
            line[0] = rows[place]
            line[1 : 1 + chunks[place].size] = chunks[place].ravel()
        batch.send()
        self._arena.writing([rows[place] for place in places])
        batch.graph.launch()
        return batch.graph.out[: len(places)]

    def advance_codec(self, codes: Tensor, row: int) -> None:
        """Decode frames of one stream only to advance its codec state.

        The largest chunks come first: the state does not depend on how frames are cut to chunks.

        Args:
            codes: (frames, codebooks) int64 on the device.
            row: State row of the stream.
        """
        if codes.is_cuda:  # from another stream, which may free its memory too early
            codes.record_stream(torch.cuda.current_stream(codes.device))
        done = 0
        while done < len(codes):
            frames = next(n for n in self._heard if n <= len(codes) - done)
            batch = self._graph(1, frames)
            batch.device[0, 0].fill_(row)
            batch.device[0, 1:].copy_(codes[done : done + frames].reshape(-1))
            self._arena.writing([row])
            batch.graph.launch()
            done += frames

    def warm_up(self) -> None:
        """Capture all graphs."""
        for frames in self._heard:
            self._graph(1, frames)
        for size in reversed(self._sizes):
            for frames in reversed(self._frames):
                self._graph(size, frames)

    def _graph(self, size: int, frames: int) -> _Batch:
        if (size, frames) not in self._graphs:
            books = self._num_codebooks
            pinned = self._device.type == "cuda"
            host = torch.zeros(size, 1 + frames * books, dtype=torch.int64, pin_memory=pinned)
            host[:, 0] = self._arena.spare_row
            device = host.to(self._device, copy=True)

            def run() -> Tensor:
                rows = device[:, 0].contiguous()
                codes = device[:, 1:].reshape(size, frames, books)
                audio, state = self._codec.decode(codes, self._arena.gather(rows))
                self._arena.scatter(rows, state)
                return audio.float()  # type: ignore[no-any-return]

            self._graphs[size, frames] = _Batch(self._capturer.capture(run), host, device)
        return self._graphs[size, frames]


def _awaited(copy: HostCopy, line: int, length: int) -> npt.NDArray[np.float32]:
    """Wait for a batch; return the first samples of one of its streams."""
    samples: npt.NDArray[np.float32] = copy.wait()[0][line, :length].numpy()
    return samples
