"""Make the short sounds over an answer: `python -m tests.realtime.sounds.make_short_sounds`.

Words that interrupt and backchannels by three voices of espeak-ng, and sounds that are no speech:
by sox, or drawn here if they come from a throat. All are committed in `short/`, as Opus at 16 kHz,
named KIND-NAME or KIND-NAME-VOICE.
"""

from __future__ import annotations

import numpy as np
import soundfile

from tests.realtime.sounds.make_sounds import FOLDER, RATE, say, synthesise

SHORT = FOLDER / "short"
# name: voice, words a minute, pitch
VOICES = {
    "man": ("en-us", 150, 50),
    "woman": ("en-us+f3", 160, 55),
    "british": ("en-gb+m3", 160, 40),
}
WORDS = {
    "stop": "Stop!",
    "no": "No.",
    "wait": "Wait.",
    "what": "What?",
    "sorry": "Sorry.",
    "actually": "Actually.",
    "hey": "Hey!",
    "thomas": "Thomas.",
    "listen": "Listen.",
    "but": "But.",
    "hold-it": "Hold it!",
}
BACKCHANNELS = {
    "mm-hm": "[[m'mh'Vm]]",
    "yeah": "Yeah.",
    "okay": "Okay.",
    "right": "Right.",
    "uh-huh": "[[V'h'V]]",
}
SOX = {
    "cough-short": "synth 0.18 brownnoise band 900 700 fade q 0.01 0.18 0.1 norm -3",
    "cough-long": "synth 0.45 pinknoise band 1100 900 fade q 0.01 0.45 0.35 norm -3",
    "knock": "synth 0.05 sine 180 fade q 0.001 0.05 0.045 norm -3 pad 0 0.12 repeat 2",
    "knock-wood": "synth 0.09 pinknoise band 420 180 fade q 0.001 0.09 0.085 norm -3 "
    "pad 0 0.15 repeat 2",
    "breath": "synth 0.7 pinknoise band 1500 1800 fade h 0.25 0.7 0.4 norm -14",
    "sigh": "synth 0.9 brownnoise band 800 900 fade h 0.1 0.9 0.7 norm -12",
    "slam": "synth 0.3 brownnoise lowpass 400 fade q 0.002 0.3 0.28 norm -2",
    "scrape": "synth 0.5 pinknoise band 700 250 tremolo 35 70 fade q 0.05 0.5 0.1 norm -6",
    "throat-buzz": "synth 0.5 sawtooth 95 synth 0.5 brownnoise amod 0 50 tremolo 28 80 "
    "band 700 700 fade q 0.03 0.5 0.2 norm -5",
}
PEAK = 0.33


def noise(rng: np.random.Generator, duration_s: float, low_hz: float, high_hz: float) -> np.ndarray:
    """Noise of a band, with a peak of 1: (n,)."""
    length = int(duration_s * RATE)
    spectrum, hertz = np.fft.rfft(rng.normal(size=length)), np.fft.rfftfreq(length, 1 / RATE)
    middle, half = (low_hz + high_hz) / 2, (high_hz - low_hz) / 2
    samples = np.fft.irfft(spectrum / (1 + ((hertz - middle) / half) ** 4), length)
    return samples / np.abs(samples).max()


def voice(rng, duration_s, pitch_hz, jitter, formants) -> np.ndarray:
    """A vowel whose pitch follows points and is unsteady by a share, with a peak of 1: (n,)."""
    length = int(duration_s * RATE)
    pitch = np.interp(np.linspace(0, 1, length), np.linspace(0, 1, len(pitch_hz)), pitch_hz)
    unsteady = np.repeat(rng.normal(size=length // 80 + 1), 80)[:length]
    phase = 2 * np.pi * np.cumsum(pitch * (1 + jitter * unsteady)) / RATE
    samples = np.zeros(length)
    for k in range(1, int(5000 / pitch.mean())):
        gain = sum(1 / (1 + ((k * pitch.mean() - formant) / 130) ** 2) for formant in formants)
        samples += gain * np.sin(k * phase)
    return samples / np.abs(samples).max()


def cough(seed: int, middle_s: float, voiced_s: float) -> np.ndarray:
    """A cough: a burst, noise, and the hoarse sound of the vocal folds as they close."""
    rng = np.random.default_rng(seed)
    burst, middle = noise(rng, 0.05, 300, 3500), noise(rng, middle_s, 400, 2500)
    hoarse = voice(rng, voiced_s, (190, 260, 170), 0.06, (700, 1200, 2500))
    end = 0.5 * hoarse + 0.5 * noise(rng, voiced_s, 400, 2500)
    parts = ((burst, 1.0, 0.6), (middle, 0.6, 0.25), (end, 0.5, 0.05))
    return np.concatenate(
        [part * np.linspace(first, last, len(part)) for part, first, last in parts]
    )


def throat(seed: int, duration_s: float) -> np.ndarray:
    """A throat being cleared: hoarse, in pulses."""
    rng = np.random.default_rng(seed)
    samples = 0.6 * voice(rng, duration_s, (90, 110, 85), 0.12, (500, 1000, 2300))
    samples += 0.7 * noise(rng, duration_s, 200, 2000)
    pulses = 1 - 0.7 * (np.sin(2 * np.pi * 24 * np.arange(len(samples)) / RATE) > 0)
    return samples * pulses * np.hanning(len(samples)) ** 0.4


def laugh(seed: int, count: int, pitch_hz: float) -> np.ndarray:
    """So many times "ha"."""
    rng, parts = np.random.default_rng(seed), []
    for number in range(count):
        pitch = np.array((1.1, 1.0, 0.9)) * pitch_hz * 0.95**number
        vowel = voice(rng, 0.11, pitch, 0.02, (750, 1300, 2600))
        loudness = np.hanning(len(vowel)) ** 0.5 * (1 - 0.12 * number)
        parts += [0.18 * noise(rng, 0.08, 500, 3500), vowel * loudness]
    return np.concatenate(parts)


def drawn() -> dict[str, np.ndarray]:
    """Sounds of a throat that are no words."""
    gap = np.zeros(RATE // 10)
    return {
        "cough-1": cough(0, 0.12, 0.08),
        "cough-2": cough(1, 0.2, 0.12),
        "cough-3": cough(2, 0.28, 0.15),
        "cough-twice": np.concatenate([cough(7, 0.2, 0.1), gap, cough(8, 0.15, 0.06)]),
        "throat-1": throat(0, 0.35),
        "throat-2": throat(1, 0.6),
        "laugh-2": laugh(0, 2, 220.0),
        "laugh-4": laugh(1, 4, 250.0),
    }


def main() -> None:
    """Make them all."""
    SHORT.mkdir(exist_ok=True)
    sounds = {f"noise-{name}": synthesise(effects) for name, effects in SOX.items()}
    sounds |= {f"noise-{name}": PEAK * x / np.abs(x).max() for name, x in drawn().items()}
    for kind, texts in (("word", WORDS), ("back", BACKCHANNELS)):
        for name, text in texts.items():
            for voice_name, how in VOICES.items():
                sounds[f"{kind}-{name}-{voice_name}"] = say(*how, text)
    for name, samples in sounds.items():
        path = SHORT / f"{name}.opus"
        soundfile.write(path, samples.astype(np.float32), RATE, format="OGG", subtype="OPUS")


if __name__ == "__main__":
    main()
