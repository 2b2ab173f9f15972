"""Make izwi-tiny-tts's speech for the corpus: a transcriber of the same package must hear it.

Writes the same files as `speech.py`; of the labels only silence, so that the training knows where
it may let a speaker pause, and no times of words.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from izwi.inputs.speech import TextMode
from izwi_models.tiny.recipes.decoding import Sampling, Speaker
from izwi_models.tiny.recipes.people.kokoro_speech import UNLABELLED
from izwi_models.tiny.recipes.rows import joined
from izwi_models.tiny.recipes.speech import (
    FRAME,
    LABEL,
    LONGEST_SECONDS,
    PHONES,
    SAMPLE_RATE,
    SILENCE,
)
from izwi_models.tiny.recipes.voices import NAMED

_MOST_FRAMES = LONGEST_SECONDS * SAMPLE_RATE // FRAME
_PARTS = 8  # batches in a file
_QUIET = 0.006  # of full scale, the level of 20 ms that are a pause


def speak(
    speaker: Speaker, texts: Sequence[str], rows: int, seed: int
) -> Iterator[list[tuple[int, str, np.ndarray]]]:
    """Speak texts in batches of `rows` of similar length, each with a named voice that is drawn.

    Yields:
        Number of the voice, text and (samples,) int16 at 24 kHz of the utterances of a batch; those
        that did not end by themselves are left out.
    """
    dice = random.Random(seed)
    by_length = sorted(texts, key=len)
    batches = [by_length[start : start + rows] for start in range(0, len(by_length), rows)]
    dice.shuffle(batches)
    for number, batch in enumerate(batches):
        voices = [dice.randrange(len(NAMED)) for _ in batch]
        names = [NAMED[voice].name for voice in voices]
        mode = dice.choice(list(TextMode))
        codes = speaker.speak(
            batch, names, mode, Sampling(), seed=seed + number, most_frames=int(_MOST_FRAMES)
        )
        made = zip(voices, batch, speaker.audio(codes), strict=True)
        yield [
            (voice, text, (audio.clamp(-1, 1) * 32767).round().to(torch.int16).cpu().numpy())
            for voice, text, audio in made
            if 2 * FRAME < len(audio) < _MOST_FRAMES * FRAME
        ]


def silence_labels(samples: np.ndarray) -> np.ndarray:
    """Label 20 ms each of (n,) int16 as silence or as unknown: (n / 480,) uint8."""
    parts = samples[: len(samples) // LABEL * LABEL].reshape(-1, LABEL).astype(np.float32) / 32768
    is_quiet = np.sqrt(np.square(parts).mean(1)) < _QUIET
    silence = json.loads(PHONES.read_text())[SILENCE]
    return np.where(is_quiet, silence, UNLABELLED).astype(np.uint8)


def write(utterances: Sequence[tuple[int, str, np.ndarray]], stem: Path) -> float:
    """Write utterances into STEM.i16, .phones.npy, .words.jsonl and .json; return their seconds."""
    samples = np.concatenate([samples for _, _, samples in utterances])
    samples.tofile(stem.with_suffix(".i16"))
    np.save(stem.with_suffix(".phones.npy"), silence_labels(samples))
    stem.with_suffix(".words.jsonl").write_text("[]\n" * len(utterances))
    meta = [(voice, text, len(samples)) for voice, text, samples in utterances]
    stem.with_suffix(".json").write_text(json.dumps(meta))
    return len(samples) / SAMPLE_RATE


def main() -> None:
    """Speak texts, one a line, until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path)
    parser.add_argument("checkpoint", type=Path, help="folder of izwi-tiny-tts")
    parser.add_argument("out", type=Path)
    parser.add_argument("--number", type=int, default=6_000)
    parser.add_argument("--joined", type=float, default=0.25, help="share said with the next one")
    parser.add_argument("--stem", default="voice", help="how the names of files begin")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=37)
    args = parser.parse_args()
    begin = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    speaker = Speaker(args.checkpoint, device)
    texts = args.texts.read_text("utf-8").splitlines()
    chosen = random.Random(args.seed).sample(texts, min(args.number, len(texts)))
    chosen = joined(chosen, args.joined, args.seed)
    seconds, waiting, number = 0.0, [], 0
    for count, batch in enumerate(speak(speaker, chosen, args.rows, args.seed), 1):
        waiting += batch
        is_over = time.monotonic() - begin > args.seconds
        if waiting and (count % _PARTS == 0 or is_over):
            seconds += write(waiting, args.out / f"{args.stem}{number:04d}")
            waiting, number = [], number + 1
        if is_over:
            break
    if waiting:
        seconds += write(waiting, args.out / f"{args.stem}{number:04d}")
    print(f"{seconds / 3600:.2f} hours of speech in {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
