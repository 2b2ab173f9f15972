"""Make flite's speech for the embedded voice's corpus: speakers of fixed sizes, for cloning.

Writes the same files as `speech.py`, without phonemes and words.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from izwi_models.tiny.recipes.loudness import levelling_gain
from izwi_models.tiny.recipes.people.cast import FIRST_FLITE
from izwi_models.tiny.recipes.people.cast_speech import LUFS
from izwi_models.tiny.recipes.people.flite_speech import TRAINED, Flite, fitted, write_unlabelled
from izwi_models.tiny.recipes.speech import Int16

SIZES = tuple(2 ** (step / 20) for step in range(-6, 7))  # factors of all frequencies


def levelled(samples: Int16) -> Int16:
    """Give a clip (n,) the corpus's loudness."""
    audio = torch.from_numpy(samples.astype(np.float32) / 32768)[None]
    made = audio * levelling_gain(audio, LUFS)[:, None] * 32767
    return made[0].round().to(torch.int16).numpy()


def _spoken(texts: Sequence[str], seed: int) -> Iterator[tuple[int, str, Int16 | None]]:
    flite, dice = Flite(), random.Random(seed)
    for text in texts:
        speaker = dice.randrange(len(TRAINED) * len(SIZES))
        warp = SIZES[speaker // len(TRAINED)]
        made = fitted(*flite.speak(text, TRAINED[speaker % len(TRAINED)], warp), warp)
        yield FIRST_FLITE + speaker, text, None if made is None else levelled(made)


def _run(job: tuple[Path, list[str], int]) -> float:
    stem, texts, seed = job
    torch.set_num_threads(1)
    return write_unlabelled(stem, _spoken(texts, seed))


def main() -> None:
    """Speak texts, one a line, beginning with the last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--number", type=int, default=4_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=36)
    args = parser.parse_args()
    begin = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    texts = args.texts.read_text("utf-8").splitlines()[::-1][: args.number]
    size = -(-len(texts) // (2 * args.processes))
    jobs = [
        (args.out / f"train-flite{number:04d}", texts[start : start + size], args.seed + number)
        for number, start in enumerate(range(0, len(texts), size))
    ]
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        hours = sum(pool.imap_unordered(_run, jobs)) / 3600
    print(f"{hours:.1f} hours of flite's speech in {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
