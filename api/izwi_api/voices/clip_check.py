"""Check whether a clip is good enough to clone a voice. Pure: samples in, figures and faults out.

Models accept worse clips than these, but the cloned voice then sounds like the clip: cut, noisy,
faint.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from izwi.arrays import Float32
from izwi.errors import AudioTooShort

# Less holds hardly a word: no voice is made from it.
MIN_CLIP_S = 1.0
# A shorter clip has too few sounds of a voice; a longer one adds nothing and enlarges every prompt.
MIN_SPEECH_S = 2.0
MAX_CLIP_S = 30.0
# Loudness of the speech: below, the recording's noise is close; above, peaks are clipped.
MIN_LEVEL_DBFS = -40.0
MAX_LEVEL_DBFS = -6.0
# Share of samples at the clip's own peak. Unclipped speech reaches its peak once or twice.
MAX_CLIPPED_SHARE = 1e-3
# Level of the speech relative to the noise between words.
MIN_SNR_DB = 20.0

_FRAME_S = 0.02
# A frame this far below the loud ones is not speech.
_SPEECH_RANGE_DB = 25.0
_FLOOR_DBFS = -100.0
# Clipped waves are flat: neighbours at the peak differ by less than this share of it.
_FLAT = 1e-3
_CLIPPING_PEAK = 0.1


@dataclass(frozen=True, slots=True)
class ClipFigures:
    """Measurements of a clip.

    Attributes:
        duration_s: Length of the clip.
        speech_s: Length of the frames that are loud enough to be speech.
        level_dbfs: RMS of these frames, relative to full scale.
        clipped_share: Share of samples in flat tops at the peak, where the wave was cut.
        snr_db: Speech relative to the noise between words. If there is no noise, or no pause, it is
            estimated from the range of the frames' loudness.
    """

    duration_s: float
    speech_s: float
    level_dbfs: float
    clipped_share: float
    snr_db: float


@dataclass(frozen=True, slots=True)
class ClipFault:
    """A fault that will be audible in the cloned voice.

    Attributes:
        name: "length", "level", "clipping" or "noise".
        message: The fault, with its figure, and what to do.
    """

    name: str
    message: str


def measure_clip(samples: Float32, rate: int) -> ClipFigures:
    """Measure a clip.

    Args:
        samples: (n,) float32 mono, full scale 1.
        rate: Sample rate in Hz.
    """
    duration_s = len(samples) / rate
    frame = max(1, round(rate * _FRAME_S))
    whole = samples[: len(samples) // frame * frame].astype(np.float64).reshape(-1, frame)
    if len(whole) == 0:
        return ClipFigures(duration_s, 0.0, _FLOOR_DBFS, 0.0, 0.0)
    # A recording's constant offset is not sound.
    power = np.square(whole - samples.mean(dtype=np.float64)).mean(axis=1)
    level = 10 * np.log10(np.maximum(power, 10 ** (_FLOOR_DBFS / 10)))
    loud = float(np.percentile(level, 95))
    if loud <= _FLOOR_DBFS:
        return ClipFigures(duration_s, 0.0, _FLOOR_DBFS, 0.0, 0.0)
    is_speech = level > loud - _SPEECH_RANGE_DB
    return ClipFigures(
        duration_s=duration_s,
        speech_s=float(is_speech.sum()) * frame / rate,
        level_dbfs=10 * float(np.log10(power[is_speech].mean())),
        clipped_share=_clipped_share(samples),
        snr_db=loud - float(np.percentile(level, 5)),
    )


def check_length(num_samples: int, rate: int) -> None:
    """Check that a clip is long enough for a voice at all.

    Args:
        num_samples: Its length in samples.
        rate: Sample rate in Hz.

    Raises:
        AudioTooShort: It is shorter than a second.
    """
    duration_s = num_samples / rate
    if duration_s < MIN_CLIP_S:
        raise AudioTooShort(
            f"the clip is {duration_s:.1f} s long; a voice needs at least {MIN_CLIP_S:.0f} s, and"
            " 3 to 30 s are best",
            param="audio_sample",
        )


def clip_faults(figures: ClipFigures) -> list[ClipFault]:
    """Return the faults of a clip with these figures."""
    faults: list[ClipFault] = []

    def add(name: str, message: str) -> None:
        faults.append(ClipFault(name, message))

    if figures.speech_s < MIN_SPEECH_S:
        add(
            "length",
            f"it has {figures.speech_s:.1f} s of speech; give at least {MIN_SPEECH_S:.0f} s",
        )
    elif figures.duration_s > MAX_CLIP_S:
        add(
            "length",
            f"it is {figures.duration_s:.0f} s long; more than {MAX_CLIP_S:.0f} s slow every"
            " sentence down and help no more",
        )
    if figures.level_dbfs < MIN_LEVEL_DBFS:
        add(
            "level",
            f"the speech is faint ({figures.level_dbfs:.0f} dBFS); record closer to the microphone",
        )
    elif figures.level_dbfs > MAX_LEVEL_DBFS:
        add("level", f"the speech is too loud ({figures.level_dbfs:.0f} dBFS); turn it down")
    if figures.clipped_share > MAX_CLIPPED_SHARE:
        share = 100 * figures.clipped_share
        add("clipping", f"{share:.1f} % of the samples are cut off at the top; record quieter")
    if figures.speech_s > 0 and figures.snr_db < MIN_SNR_DB:
        add(
            "noise",
            f"the speech is {figures.snr_db:.0f} dB above what is heard between the words, less"
            f" than {MIN_SNR_DB:.0f}; record in a quieter room",
        )
    return faults


def _clipped_share(samples: Float32) -> float:
    """Return the share of samples in flat tops: runs of three or more at the peak."""
    size = np.abs(samples)
    peak = float(size.max())
    if peak < _CLIPPING_PEAK:
        return 0.0
    at_peak = size > peak * (1 - _FLAT)
    inside = at_peak[:-2] & at_peak[1:-1] & at_peak[2:]
    flat = np.zeros(len(samples), bool)
    for shift in range(3):
        flat[shift : len(flat) - 2 + shift] |= inside
    return float(flat.mean())
