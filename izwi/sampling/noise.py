"""Random numbers for sampling: a function of (seed, step, codebook), equal on all backends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from izwi.model.step_batch import Row

# Numbers for this many codebooks are computed at once.
_BLOCK = 16
_MASK = (1 << 64) - 1


class StepNoise:
    """Random numbers for the rows of one step.

    Args:
        draws: One per row.
    """

    def __init__(self, draws: Sequence[Row]):
        self._draws = draws
        self._blocks: dict[int, npt.NDArray[np.float64]] = {}

    def uniform(self, codebook: int) -> npt.NDArray[np.float64]:
        """Return uniform numbers in [0, 1), (rows,)."""
        first = codebook - codebook % _BLOCK
        if first not in self._blocks:
            seeds = [draw.request.seed for draw in self._draws]
            steps = [draw.step for draw in self._draws]
            block = np.arange(first, first + _BLOCK)
            self._blocks[first] = np.ascontiguousarray(uniforms(seeds, steps, block).T)
        noise: npt.NDArray[np.float64] = self._blocks[first][codebook - first]
        return noise


def uniforms(
    seeds: Sequence[int], steps: Sequence[int], codebook: int | npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return uniform numbers in [0, 1): (rows,), or (rows, codebooks) for an array of codebooks.

    A counter-based generator: two rounds of the SplitMix64 finaliser (Steele, Lea and Flood,
    2014) over the seed and over the counter (step, codebook).
    """
    seed = np.array([s & _MASK for s in seeds], dtype=np.uint64)
    counter = np.array(steps, dtype=np.uint64) * np.uint64(64)
    if isinstance(codebook, np.ndarray):
        seed, counter = seed[:, None], counter[:, None] + codebook.astype(np.uint64)
    else:
        counter = counter + np.uint64(codebook)
    bits = _mix(_mix(seed + np.uint64(0x9E3779B97F4A7C15)) ^ counter)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
