"""Features of an audio segment that is still arriving. Knows no text.

The published features are clamped relative to the loudest value of the whole audio, so new audio
may change all of them. Here a complete window keeps its scale: the loudest value of the segment
when the window became complete. If a later window is louder, the floor of the earlier ones
therefore stays 80 dB below their own loudest value. A segment that is written in one piece has the
features of `whisper_log_mel`, bit for bit.
"""

from __future__ import annotations

import numpy as np

from izwi.arrays import Float32
from izwi.audio.mel import (
    WHISPER_HOP,
    WHISPER_MELS,
    StreamLogMel,
    whisper_closing_frames,
    whisper_scaled,
)
from izwi.request.request import EncodeInput
from izwi_models.qwen3_asr.config import AudioConfig
from izwi_models.qwen3_asr.prompt import window_kind


class SegmentFeatures:
    """Features of one segment; each frame and each complete window is computed once."""

    def __init__(self, config: AudioConfig, max_samples: int):
        self._config = config
        self._mel = StreamLogMel()
        self._log_power = np.empty((WHISPER_MELS, max_samples // WHISPER_HOP), np.float32)
        self._num_frames = 0
        self._complete: list[EncodeInput] = []
        self.num_samples = 0

    def write(self, samples: Float32) -> None:
        """Add the next samples of the segment, (n,) float32."""
        frames = self._mel.write(samples)
        self._log_power[:, self._num_frames : self._num_frames + frames.shape[1]] = frames
        self._num_frames += frames.shape[1]
        self.num_samples += len(samples)

    def windows(self, num_frames: int) -> tuple[EncodeInput, ...]:
        """Return the first frames as windows; all must have arrived. Complete ones are cached."""
        return self._cut(self._log_power[:, :num_frames])

    def all_windows(self, samples: Float32) -> tuple[EncodeInput, ...]:
        """Return the windows of a segment that ends.

        Args:
            samples: (n,) all samples of the segment; audio written after them is left out.
        """
        closing = whisper_closing_frames(samples)
        stop = len(samples) // WHISPER_HOP - closing.shape[1]
        return self._cut(np.concatenate([self._log_power[:, :stop], closing], axis=1))

    def _cut(self, log_power: Float32) -> tuple[EncodeInput, ...]:
        frames, size = log_power.shape[1], self._config.n_window_infer
        loudest = float(log_power.max())
        kind = window_kind(self._config, frames)
        windows = self._complete[: frames // size]
        for start in range(len(windows) * size, frames, size):
            part = np.ascontiguousarray(log_power[:, start : start + size])
            windows.append(EncodeInput(kind, whisper_scaled(part, loudest)))
        whole = windows[: frames // size]
        if len(whole) > len(self._complete):
            self._complete = whole
        return tuple(windows)
