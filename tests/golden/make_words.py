"""Record what espeak-ng says and when it says each word: python -m tests.golden.make_words

Needs espeak-ng. words.npz holds, of each held-out sentence N (voices that were not trained on):
text_N; sound_N (n,) int8, 16 kHz in steps of 1/128; times_ms_N (2 x words,) float32, start and end
of each word, below 0 where espeak-ng says it as one with its neighbour.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import soxr

from izwi_models.tiny.recipes.aligner import known_times
from izwi_models.tiny.recipes.speech import SAMPLE_RATE, Espeak
from izwi_models.tiny.recipes.text import HELDOUT
from izwi_models.tiny.recipes.voices import all_voices

WORDS = Path(__file__).with_name("words.npz")
SENTENCES = (3, 58, 141)  # of the held-out ones


def main() -> None:
    """Write words.npz."""
    espeak = Espeak()
    voices = [voice for voice in all_voices() if voice.heldout]
    lines = HELDOUT.read_text(encoding="utf-8").splitlines()
    made: dict[str, Any] = {}
    for number, index in enumerate(SENTENCES):
        said = espeak.utterance(lines[index], voices[index % len(voices)], {})
        assert said is not None
        audio = soxr.resample(said.samples / 32768.0, SAMPLE_RATE, 16_000)
        made[f"text_{number}"] = np.array(lines[index])
        made[f"sound_{number}"] = np.round(audio * 128).clip(-128, 127).astype(np.int8)
        times_ms = known_times(lines[index], said.words)
        made[f"times_ms_{number}"] = np.array(times_ms, np.float32)
        print(lines[index], len(audio) / 16_000, times_ms)
    np.savez_compressed(WORDS, **made)


if __name__ == "__main__":
    main()
