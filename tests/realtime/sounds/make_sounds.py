"""Make the sounds of the conversations: `python tests/realtime/sounds/make_sounds.py`.

Needs espeak-ng and sox. What they make is committed as Opus, 16 kHz mono, beside this file; tests
mix conversations of it, so that they need neither.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import numpy as np
import soundfile
import soxr

RATE = 16_000
FOLDER = Path(__file__).parent

# name: voice, words a minute, pitch, text; text in brackets is espeak-ng's phonemes
SPEECH = {
    "question": ("en-us", 160, 45, "When does the train leave?"),
    "follow-up": ("en-us", 160, 45, "And what does the ticket cost?"),
    "stop": ("en-us", 150, 50, "Stop."),
    "no-wait": ("en-us", 160, 50, "No, wait. I meant the bus."),
    "about-bus": ("en-us", 165, 50, "Please tell me about the bus to the river."),
    "mm-hm": ("en-us", 130, 45, "[[m'mh'Vm]]"),
    "okay": ("en-us", 160, 45, "Okay."),
    "okay-yes": ("en-us", 160, 45, "Okay, yes."),
    "right": ("en-us", 160, 45, "Right."),
    "would-like": ("en-us", 160, 45, "I would like to know"),
    "when-leaves": ("en-us", 160, 45, "when the train leaves."),
    "woman": ("en-us+f3", 160, 55, "How far is it from the house to the river?"),
    "woman-talks": (
        "en-us+f3",
        165,
        55,
        "The garden behind the house was quiet, and the children had gone to the river "
        "with their father to look at the boats.",
    ),
    "man-talks": (
        "en-gb+m3",
        165,
        40,
        "We went to the market in the morning and bought some bread, and then we walked home "
        "along the river because the weather was so good.",
    ),
    "long": (
        "en-us",
        165,
        45,
        "I have a question about the train to the north. My brother wants to visit us next "
        "week, and he asked me when it leaves in the morning.",
    ),
}
# name: what sox is asked for after its output
SOX = {
    "music": (
        "synth 6 pluck G2 pluck B2 pluck D3 pluck G3 pluck D4 pluck G4 delay 0 .15 .3 .45 .6 .75 "
        "remix - fade 0 6 .2 norm -6"
    ),
    "pad": (
        "synth 6 sine C3 sine E3 sine G3 triangle C4 tremolo 0.7 30 remix - fade .4 6 .4 norm -6"
    ),
    "cough-1": "synth 0.16 brownnoise band 900 700 fade q 0.01 0.16 0.1 norm -3",
    "cough-2": "synth 0.13 pinknoise band 1400 1000 fade q 0.005 0.13 0.09 norm -5",
    "knock": "synth 0.05 sine 180 fade q 0.001 0.05 0.045 norm -3 pad 0 0.12 repeat 2",
    "dial": "synth 3 sine 350 sine 440 remix - norm -8",
}
NUM_BABBLING = 8


def say(voice: str, speed: int, pitch: int, text: str) -> np.ndarray:
    """A text as espeak-ng says it: (n,) float32 at 16 kHz."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "said.wav"
        command = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "-w", path, text]
        subprocess.run(command, check=True)
        samples, rate = soundfile.read(path, dtype="float32")
    return soxr.resample(samples, rate, RATE)


def synthesise(effects: str) -> np.ndarray:
    """A sound as sox makes it: (n,) float32 at 16 kHz."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.wav"
        words = effects.split()
        command = ["sox", "-R", "-D", "-n", "-r", str(RATE), "-b", "16", path, *words]
        subprocess.run(command, check=True)
        samples, _ = soundfile.read(path, dtype="float32")
    return samples if samples.ndim == 1 else samples.mean(axis=1)


def babble() -> np.ndarray:
    """Eight people who talk at once."""
    total = np.zeros(RATE * 6, np.float32)
    for number in range(NUM_BABBLING):
        voice = ("en-us+f2", "en-gb+m2", "en-us+m5", "en-gb+f4")[number % 4]
        text = SPEECH["woman-talks" if number % 2 else "man-talks"][3]
        one = say(voice, 150 + 7 * number, 30 + 6 * number, f"{text} {text}")
        start = number * RATE * 3 // 7
        total += one[start : start + len(total)] / np.sqrt(np.mean(one**2))
    return 0.1 * total / np.sqrt(np.mean(total**2))


def main() -> None:
    """Make them all."""
    sounds = {name: say(*how) for name, how in SPEECH.items()}
    sounds |= {name: synthesise(effects) for name, effects in SOX.items()}
    gap = np.zeros(int(0.09 * RATE), np.float32)
    sounds["cough"] = np.concatenate([sounds.pop("cough-1"), gap, sounds.pop("cough-2")])
    sounds["babble"] = babble()
    for name, samples in sounds.items():
        path = FOLDER / f"{name}.opus"
        soundfile.write(path, samples.astype(np.float32), RATE, format="OGG", subtype="OPUS")


if __name__ == "__main__":
    main()
