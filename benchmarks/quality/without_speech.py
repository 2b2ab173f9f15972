"""Generate audio without speech: silence, noise, music, hum and clicks of any length.

It shares no code with the transcriber's training data (`recipes/augment.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from izwi.arrays import Float32

RATE = 16_000
SHORTEST_S, LONGEST_S = 0.2, 60.0
Draw = np.random.Generator
Waves = np.ndarray  # float64, (samples,)


def _silence(draw: Draw, at: Waves) -> Waves:
    """Make silence, the dither of a sound card, or its hiss."""
    return draw.choice([0.0, 3e-5, 1e-3]) * draw.standard_normal(len(at))


def _noise(draw: Draw, at: Waves) -> Waves:
    """Make noise of any colour in any band: fans, rain, gusty wind, waves."""
    hertz = np.fft.rfftfreq(len(at), 1 / RATE)
    shape = np.maximum(hertz, 20) ** -draw.uniform(0, 1.1)
    low, high = draw.choice([(0, 8000), (300, 3400), (80, 900), (2000, 8000)])
    shape[(hertz < low) | (hertz > high)] = 0
    noise = np.fft.irfft(np.fft.rfft(draw.standard_normal(len(at))) * shape, len(at))
    swell = 1 + draw.choice([0.0, 0.9]) * np.sin(2 * np.pi * draw.uniform(0.1, 6) * at)
    return noise / (noise.std() + 1e-9) * swell


def _music(draw: Draw, at: Waves) -> Waves:
    """Make a melody over chords, plucked or blown, with or without a drum."""
    made = np.zeros(len(at))
    beat_s = draw.uniform(0.18, 0.7)
    scale = 220 * 2 ** (np.array([0, 2, 4, 5, 7, 9, 11, 12, 14, 16]) / 12) * draw.uniform(0.5, 2)
    decay = draw.choice([0.5, 4.0])
    vibrato = draw.choice([0.0, 0.004]) * np.sin(2 * np.pi * 5.5 * at)
    for begin_s in np.arange(0, at[-1], beat_s):
        first, last = round(begin_s * RATE), min(len(at), round((begin_s + beat_s) * RATE))
        since = at[first:last] - begin_s
        for hertz in draw.choice(scale, draw.integers(1, 4), replace=False):
            for partial in range(1, 6):
                phase = 2 * np.pi * partial * hertz * (since + vibrato[first:last] / 5)
                made[first:last] += np.sin(phase) * np.exp(-decay * since) / partial**1.3
        if draw.random() < 0.3:
            hit = draw.standard_normal(last - first) * np.exp(-40 * since)
            made[first:last] += 2 * hit
    return made


def _hum(draw: Draw, at: Waves) -> Waves:
    """Make mains hum with harmonics, a motor of changing speed, or telephone tones."""
    kind = draw.integers(3)
    if kind == 0:
        mains = draw.choice([50.0, 60.0])
        strengths = draw.uniform(0, 1, 12) / np.arange(1, 13)
        return sum(s * np.sin(2 * np.pi * mains * n * at) for n, s in enumerate(strengths, 1))
    if kind == 1:
        hertz = draw.uniform(60, 160) * (1 + 0.2 * np.sin(2 * np.pi * draw.uniform(0.05, 0.5) * at))
        phase = 2 * np.pi * np.cumsum(hertz) / RATE
        return sum(np.sin(n * phase) / n for n in range(1, 9))
    pair = draw.choice([(350, 440), (440, 480), (697, 1209), (1000, 1000)])
    on = (at % draw.uniform(0.2, 3) < draw.uniform(0.1, 2)).astype(float)
    return on * sum(np.sin(2 * np.pi * hertz * at) for hertz in pair)


def _clicks(draw: Draw, at: Waves) -> Waves:
    """Make short ringing sounds at irregular times: keys, drops, steps and scratches."""
    made = np.zeros(len(at))
    for begin in draw.integers(0, len(at), draw.poisson(draw.uniform(1, 8) * at[-1]) + 1):
        length = min(len(at) - begin, round(draw.uniform(0.002, 0.08) * RATE))
        since = np.arange(length) / RATE
        ring = np.cos(2 * np.pi * draw.uniform(200, 5000) * since)
        body = draw.standard_normal(length) if draw.random() < 0.5 else ring
        made[begin : begin + length] += draw.uniform(0.2, 1) * body * np.exp(-since / 0.01)
    return made


KINDS: dict[str, Callable[[Draw, Waves], Waves]] = {
    "silence": _silence,
    "noise": _noise,
    "music": _music,
    "hum": _hum,
    "clicks": _clicks,
}


def draw_clips(number: int, seed: int) -> list[tuple[str, Float32]]:
    """Yield clips of all kinds in turn, of 0.2 to 60 s (log-uniform).

    Returns:
        The kind, and samples at 16 kHz in [-1, 1]; all but silence peak at -45 to 0 dBFS.
    """
    draw = np.random.default_rng(seed)
    clips = []
    for kind in (list(KINDS) * (number // len(KINDS) + 1))[:number]:
        seconds = float(np.exp(draw.uniform(np.log(SHORTEST_S), np.log(LONGEST_S))))
        made = KINDS[kind](draw, np.arange(round(seconds * RATE)) / RATE)
        if kind != "silence":
            made = made / (np.abs(made).max() + 1e-9) * 10 ** (-draw.uniform(0, 45) / 20)
        clips.append((kind, np.clip(made, -1, 1).astype(np.float32)))
    return clips
