"""Compare the sound of the named voices with espeak-ng, their training data: figures and plots.

Needs espeak-ng's library. `benchmarks.quality.held_out` measures intelligibility; this measures
artefacts: noise between harmonics and in gaps, and spurious tones. Real-time factor and first audio
are of one stream and need an idle machine.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import write_result
from benchmarks.quality.embedded import spoken
from izwi.arrays import Float32
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.speech import SpeechInput
from izwi_models.tiny.recipes.speech import Espeak
from izwi_models.tiny.recipes.text import HELDOUT
from izwi_models.tiny.recipes.voices import NAMED
from izwi_models.tiny.recipes.voicing import track_pitch

RATE = 24_000
DOCS = Path(__file__).parents[2] / "docs"
_SENTENCE = "The house is near the river, and the water is cold today."
_HOP, _WINDOW, _PERIODICITY_WINDOW = 480, 960, 1024
_QUIET, _LOUD = 10, 90  # percentiles of the levels inside a sentence


def high_periodicity(samples: Float32, low_hz: float = 2000.0, high_hz: float = 4000.0) -> float:
    """Measure how periodic a band is at the pitch, in voiced windows.

    The band's normalized autocorrelation, at the best lag within 3 % of the period that YIN finds
    in the full band: 1 for harmonics only, near 0 for noise.

    Args:
        samples: (n,) at 24 kHz, at least 60 ms.
        low_hz: Lower edge of the band.
        high_hz: Upper edge of the band.

    Returns:
        The mean over voiced windows; nan if there are none.
    """
    track = track_pitch(torch.from_numpy(samples)[None], RATE)
    spectrum = np.fft.rfft(samples)
    hertz = np.fft.rfftfreq(len(samples), 1 / RATE)
    spectrum[(hertz < low_hz) | (hertz > high_hz)] = 0
    band = np.fft.irfft(spectrum, len(samples))
    found = []
    for number in torch.nonzero(track.voiced[0])[:, 0].tolist():
        period, start = RATE / float(track.f0_hz[0, number]), number * _HOP
        head = band[start : start + _PERIODICITY_WINDOW]
        lags = range(int(0.97 * period), int(1.03 * period) + 2)
        tails = [band[start + lag : start + lag + len(head)] for lag in lags]
        found.append(max(_correlation(head, tail) for tail in tails if len(tail) == len(head)))
    return float(np.mean(found)) if found else float("nan")


def gap_level_db(samples: Float32) -> float:
    """Measure the level of quiet parts inside a sentence relative to loud ones, in dB.

    The 10th percentile of the levels of 20 ms minus the 90th, from the first to the last part that
    is within 30 dB of the loudest.
    """
    parts = samples[: len(samples) // _HOP * _HOP].reshape(-1, _HOP).astype(np.float64)
    levels = 10 * np.log10(np.square(parts).mean(1) + 1e-10)
    loud = np.flatnonzero(levels > levels.max() - 30)
    inside = levels[loud[0] : loud[-1] + 1]
    return float(np.percentile(inside, _QUIET) - np.percentile(inside, _LOUD))


def line_db(samples: Float32, hertz: float = 8000.0) -> float:
    """Measure how far a steady tone rises above the spectrum around it, in dB.

    The loudest bin within 60 Hz of it in the mean power spectrum, against the median within 1 kHz.
    """
    size = 4096
    frames = np.lib.stride_tricks.sliding_window_view(samples, size)[:: size // 2]
    power = np.square(np.abs(np.fft.rfft(frames * np.hanning(size)))).mean(0) + 1e-12
    away = np.abs(np.fft.rfftfreq(size, 1 / RATE) - hertz)
    return float(10 * np.log10(power[away < 60].max() / np.median(power[away < 1000])))


def spectrogram(samples: Float32) -> np.ndarray:
    """Return the (bins, frames) levels of 40 ms windows every 10 ms, in dB below the loudest."""
    frames = np.lib.stride_tricks.sliding_window_view(samples, _WINDOW)[:: _HOP // 2]
    power = np.square(np.abs(np.fft.rfft(frames * np.hanning(_WINDOW)))) + 1e-12
    levels = 10 * np.log10(power.T)
    return levels - levels.max()


def draw(path: Path, ours: Float32, theirs: Float32) -> None:
    """Draw our voice above espeak-ng's into a PNG file."""
    # takes half a second, and most who import this draw nothing
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 3.2), layout="constrained")
    for axes, name, samples in zip(
        figure.subplots(2, 1), ("izwi", "espeak-ng"), (ours, theirs), strict=True
    ):
        extent = (0.0, len(samples) / RATE, 0.0, RATE / 2000)
        axes.imshow(
            spectrogram(samples),
            origin="lower",
            aspect="auto",
            extent=extent,
            vmin=-80,
            cmap="gray_r",
        )
        axes.set_ylabel(f"{name}, kHz")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=72, metadata={"Software": None})


def figures(samples: Float32) -> dict[str, float]:
    """Return the figures of one sentence."""
    return {
        "periodicity_2_4_khz": high_periodicity(samples),
        "gap_level_db": gap_level_db(samples),
        "line_8_khz_db": line_db(samples),
    }


def mean_of(rows: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each figure, ignoring nan."""
    return {key: round(float(np.nanmean([row[key] for row in rows])), 3) for key in rows[0]}


class Speaker:
    """The embedded voice, one sentence at a time."""

    def __init__(self) -> None:
        backend, self._name = torch_backend("cpu"), "izwi-tiny-tts"
        self._registry = Registry(backend)
        self._registry.load(self._name)
        self._engine = Engine(self._registry.models, backend, EngineConfig())
        self.first_s: list[float] = []
        self.real_time: list[float] = []

    def say(self, text: str, voice: str, seed: int) -> Float32:
        """Speak a text of one piece; record time to first audio and real-time factor."""
        model = self._registry.speech(self._name)
        pcm: list[Float32] = []
        begun_s = time.perf_counter()
        for number, piece in enumerate(model.split_text(text)):
            ask = SpeechInput(piece, voice=voice, seed=seed)
            self._engine.submit(model.prepare_speech(f"s{number}", self._name, ask))
            while self._engine.has_work:
                for chunk in self._engine.step():
                    if chunk.error is not None:
                        raise chunk.error
                    if chunk.pcm is not None and chunk.pcm.size:
                        if not pcm:
                            self.first_s.append(time.perf_counter() - begun_s)
                        pcm.append(chunk.pcm)
        audio = np.concatenate(pcm)
        self.real_time.append((time.perf_counter() - begun_s) * RATE / len(audio))
        return audio


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    scale = np.sqrt((one @ one) * (other @ other))
    return float(one @ other / scale) if scale > 0 else 0.0


def main() -> None:
    """Measure each named voice over held-out sentences; draw one sentence of each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=20, help="sentences of each voice")
    parser.add_argument("--draw", action="store_true", help="write docs/images/voice-*.png")
    options = parser.parse_args()
    lines = HELDOUT.read_text(encoding="utf-8").splitlines()
    texts = [line for line in lines if 4 <= len(line.split()) <= 14][: options.sentences]
    speaker, espeak = Speaker(), Espeak()
    speaker.say(_SENTENCE, "amber", 0)
    speaker.first_s.clear()
    speaker.real_time.clear()
    rows: list[dict[str, Any]] = []
    for voice in NAMED:
        pairs = [
            (speaker.say(text, voice.name, seed), spoken(espeak, text, voice))
            for seed, text in enumerate(texts)
        ]
        ours, theirs = (mean_of([figures(pair[side]) for pair in pairs]) for side in (0, 1))
        rows.append(
            {"voice": voice.name, **ours, **{f"espeak_{key}": v for key, v in theirs.items()}}
        )
        if options.draw:
            made = speaker.say(_SENTENCE, voice.name, 0), spoken(espeak, _SENTENCE, voice)
            draw(DOCS / "images" / f"voice-{voice.name}.png", *made)
    keys = [key for key in rows[0] if key != "voice"]
    rows.append({"voice": "mean", **mean_of([{key: row[key] for key in keys} for row in rows])})
    rows[-1] |= {
        "first_audio_ms": round(1000 * float(np.median(speaker.first_s)), 1),
        "real_time_factor": round(float(np.median(speaker.real_time)), 3),
    }
    write_result("voice_sound", rows, sentences=len(texts))


if __name__ == "__main__":
    main()
