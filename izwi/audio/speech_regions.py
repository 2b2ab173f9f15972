"""Find where somebody speaks in a recording, by WebRTC's voice activity detector. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import webrtcvad

from izwi.arrays import Float32, Samples

SAMPLE_RATE = 16_000
FRAME_S = 0.03
_FRAME = int(FRAME_S * SAMPLE_RATE)
# The detector has four settings, from permissive to strict; the share that detects speech is the
# probability.
_MODES = (0, 1, 2, 3)
# It compares with fixed energies, so quiet recordings are raised to this peak first.
_PEAK = 0.5
_SILENCE_PEAK = 2.0**-11  # as in `izwi.audio.speech_detection`
# Frames this far below the loud ones of the recording are not speech: room noise and breath.
_RANGE_DB = 35.0
_LOUD_PERCENT = 95.0
_LEAST_REGION_S = 0.15
_BLOCK = 1000 * _FRAME


@dataclass(frozen=True, slots=True)
class RegionRules:
    """What counts as speech.

    Attributes:
        threshold: Probability of a frame, from 0.0 to 1.0.
        silence_s: A shorter pause does not end a region.
    """

    threshold: float = 0.5
    silence_s: float = 0.2


def speech_regions(samples: Samples, rules: RegionRules | None = None) -> list[tuple[int, int]]:
    """Find the regions of speech, as ranges [start, stop) of samples, in order.

    Args:
        samples: (n,) float32 at 16 kHz; one block is read at a time.
        rules: What counts as speech.
    """
    rules = rules or RegionRules()
    speech, levels_db = _frames(samples)
    if not len(speech):
        return []
    loud_db = float(np.percentile(levels_db, _LOUD_PERCENT))
    is_speech = (speech >= max(rules.threshold, 1e-6)) & (levels_db > loud_db - _RANGE_DB)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_speech, [False]])))
    regions: list[tuple[int, int]] = []
    for start, stop in edges.reshape(-1, 2).tolist():
        if regions and (start - regions[-1][1]) * FRAME_S < rules.silence_s:
            regions[-1] = regions[-1][0], stop
        else:
            regions.append((start, stop))
    least = _LEAST_REGION_S / FRAME_S
    return [(a * _FRAME, b * _FRAME) for a, b in regions if b - a >= least]


def _frames(samples: Samples) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the probability of speech and the level in dB of each frame, (frames,) each."""
    peak = max((float(np.abs(b).max(initial=0.0)) for b in _blocks(samples)), default=0.0)
    if peak < _SILENCE_PEAK:
        return np.zeros(0), np.zeros(0)
    detectors = [webrtcvad.Vad(mode) for mode in _MODES]
    speech, levels = [], []
    for block in _blocks(samples):
        frames = block[: len(block) // _FRAME * _FRAME].reshape(-1, _FRAME)
        levels.append(10.0 * np.log10(np.square(frames, dtype=np.float64).mean(axis=1) + 1e-12))
        raised = np.clip(frames * (32767 * max(1.0, _PEAK / peak)), -32768, 32767).astype(np.int16)
        for frame in raised:
            pcm = frame.tobytes()
            # each tracks a noise floor, so all must see every frame
            votes = [detector.is_speech(pcm, SAMPLE_RATE) for detector in detectors]
            speech.append(sum(votes) / len(votes))
    return np.array(speech), np.concatenate(levels)


def _blocks(samples: Samples) -> list[Float32]:
    return [samples[start : start + _BLOCK] for start in range(0, len(samples), _BLOCK)]
