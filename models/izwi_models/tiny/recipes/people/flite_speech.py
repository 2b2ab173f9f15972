"""Make flite's speech for the corpus: voices built from recordings of people, in their own sizes.

Writes the same files as `speech.py`, without phonemes and words. Drives the libraries through
ctypes on all cores; FLITE_FOLDER names the folder that holds them where they are not installed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from izwi_models.tiny.recipes.people.kokoro_speech import UNLABELLED
from izwi_models.tiny.recipes.people.kokoro_voices import resampled
from izwi_models.tiny.recipes.speech import (
    EDGE,
    FRAME,
    LABEL,
    LONGEST_SECONDS,
    SAMPLE_RATE,
    Int16,
)

TRAINED = ("rms", "awb", "kal16")
HELDOUT = ("slt",)
_QUIET = 0.008
_PEAK = 0.6 * 32767


class _Wave(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("count", ctypes.c_int),
        ("channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


class _Voice(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("features", ctypes.c_void_p))


class Flite:
    """The synthesizer, one a process."""

    def __init__(self) -> None:
        self._folder = os.environ.get("FLITE_FOLDER", "")
        self._library = ctypes.CDLL(self._path("libflite.so.1"), ctypes.RTLD_GLOBAL)
        for name in ("usenglish", "cmulex"):
            ctypes.CDLL(self._path(f"libflite_{name}.so.1"), ctypes.RTLD_GLOBAL)
        self._library.flite_init()
        self._library.flite_text_to_wave.restype = ctypes.POINTER(_Wave)
        self._library.flite_text_to_wave.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
        self._library.feat_set_float.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_float]
        self._library.delete_wave.argtypes = [ctypes.c_void_p]
        self._voices: dict[str, Any] = {}

    def _path(self, name: str) -> str:
        return str(Path(self._folder) / name) if self._folder else name

    def _voice(self, name: str) -> Any:
        if name not in self._voices:
            library = ctypes.CDLL(self._path(f"libflite_cmu_us_{name}.so.1"))
            register = getattr(library, f"register_cmu_us_{name}")
            register.restype = ctypes.POINTER(_Voice)
            register.argtypes = [ctypes.c_char_p]
            self._voices[name] = register(None)
        return self._voices[name]

    def speak(self, text: str, voice: str, stretch: float = 1.0) -> tuple[Int16, int]:
        """Return samples, and their rate in Hz.

        Args:
            text: English.
            voice: "rms", "awb", "kal16" or "slt".
            stretch: Factor of all durations.
        """
        chosen = self._voice(voice)
        self._library.feat_set_float(chosen.contents.features, b"duration_stretch", stretch)
        made = self._library.flite_text_to_wave(text.encode(), chosen)
        wave = made.contents
        samples = np.ctypeslib.as_array(wave.samples, (wave.count,)).copy()
        rate = int(wave.sample_rate)
        self._library.delete_wave(made)
        return samples, rate


def fitted(samples: Int16, rate: int, warp: float = 1.0) -> Int16 | None:
    """Resample to 24 kHz, and trim to `EDGE` samples of silence around; None if it does not fit.

    Args:
        samples: (n,).
        rate: Of the samples, in Hz.
        warp: How much faster it is played than it was said.
    """
    audio = torch.from_numpy(samples.astype(np.float32))[None]
    made = resampled(audio, torch.tensor([warp * rate / SAMPLE_RATE]))[0].numpy()
    peak = np.abs(made).max(initial=0.0)
    loud = np.flatnonzero(np.abs(made) > _QUIET * peak)
    if peak < 100 or len(loud) < 2000:
        return None
    speech = made[loud[0] : loud[-1] + 1] * (_PEAK / peak)
    frames = -(-(len(speech) + 2 * EDGE) // FRAME)
    if frames * FRAME > LONGEST_SECONDS * SAMPLE_RATE:
        return None
    whole = np.zeros(frames * FRAME, np.int16)
    whole[EDGE : EDGE + len(speech)] = np.round(speech)
    return whole


def write_unlabelled(stem: Path, utterances: Iterable[tuple[int, str, Int16 | None]]) -> float:
    """Write speech without phonemes and words: STEM.i16, .phones.npy, .words.jsonl and .json.

    Args:
        stem: Path without an ending.
        utterances: Number of the speaker, text, and samples (n,) or None, which are left out.

    Returns:
        Seconds of speech.
    """
    meta = []
    with stem.with_suffix(".i16").open("wb") as sink:
        for speaker, text, samples in utterances:
            if samples is not None:
                sink.write(samples.tobytes())
                meta.append((speaker, text, len(samples)))
    count = sum(row[2] for row in meta)
    np.save(stem.with_suffix(".phones.npy"), np.full(count // LABEL, UNLABELLED, np.uint8))
    stem.with_suffix(".words.jsonl").write_text("[]\n" * len(meta))
    stem.with_suffix(".json").write_text(json.dumps(meta))
    return count / SAMPLE_RATE


def _spoken(texts: Sequence[str], seed: int) -> Iterator[tuple[int, str, Int16 | None]]:
    flite, dice = Flite(), random.Random(seed)
    for text in texts:
        warp = 2 ** dice.gauss(0.0, 0.12)
        voice, stretch = dice.choice(TRAINED), warp * dice.uniform(0.8, 1.25)
        yield 0, text, fitted(*flite.speak(text, voice, stretch), warp)


def _run(job: tuple[Path, list[str], int]) -> float:
    stem, texts, seed = job
    torch.set_num_threads(1)
    return write_unlabelled(stem, _spoken(texts, seed))


def main() -> None:
    """Speak texts, one a line, beginning with the last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--number", type=int, default=12_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=36)
    args = parser.parse_args()
    begin = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    texts = args.texts.read_text().splitlines()[::-1][: args.number]
    size = -(-len(texts) // (4 * args.processes))
    jobs = [
        (args.out / f"flite{number:04d}", texts[start : start + size], args.seed + number)
        for number, start in enumerate(range(0, len(texts), size))
    ]
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        hours = sum(pool.imap_unordered(_run, jobs)) / 3600
    print(f"{hours:.1f} hours of flite's speech in {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
