"""Speak faster or slower at the same pitch, as a stream. Knows no container."""

from __future__ import annotations

from typing import Any

import av
import av.filter
import numpy as np

from izwi.arrays import Float32


class StreamTempo:
    """Stretch or squeeze a mono stream with FFmpeg's atempo filter (WSOLA).

    Args:
        rate: Rate of the samples in Hz.
        speed: Within the limits of `izwi.audio.limits`; 2 takes half the time, 1 changes no sample.
    """

    def __init__(self, rate: int, speed: float):
        self._rate = rate
        self._num_samples = 0
        self._graph: Any = None if speed == 1.0 else _graph(rate, speed)

    def write(self, pcm: Float32) -> Float32:
        """Take samples and return those that are ready."""
        if self._graph is None or pcm.size == 0:
            return pcm
        frame = av.AudioFrame.from_ndarray(pcm[None], format="fltp", layout="mono")
        frame.sample_rate = self._rate
        frame.pts = self._num_samples
        self._num_samples += pcm.size
        self._graph.push(frame)
        return self._pull()

    def finish(self) -> Float32:
        """Return what the filter still holds."""
        if self._graph is None or not self._num_samples:
            return np.zeros(0, np.float32)
        self._graph.push(None)
        return self._pull()

    def _pull(self) -> Float32:
        pieces = [np.zeros(0, np.float32)]
        while True:
            try:
                pieces.append(self._graph.pull().to_ndarray().reshape(-1))
            except (av.BlockingIOError, av.EOFError):
                return np.concatenate(pieces)


def _graph(rate: int, speed: float) -> Any:
    graph = av.filter.Graph()
    # One atempo goes no slower than a half, so the slowest speeds take two of them.
    factors = [speed] if speed >= 0.5 else [0.5, speed / 0.5]
    nodes = [graph.add_abuffer(sample_rate=rate, format="fltp", layout="mono")]
    nodes += [graph.add("atempo", f"{factor:.6f}") for factor in factors]
    nodes += [graph.add("aformat", "sample_fmts=flt"), graph.add("abuffersink")]
    graph.link_nodes(*nodes).configure()
    return graph
