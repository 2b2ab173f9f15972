"""Make a Piper voice's speech for the corpus: VITS, trained on recordings of one man.

Writes the same files as `speech.py`, without phonemes and words. `--halve` writes the voice with
weights of 16 bits, which onnxruntime widens: half the size to carry.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from izwi_models.tiny.recipes.people.flite_speech import fitted, write_unlabelled
from izwi_models.tiny.recipes.people.phonemes import Phonemizer
from izwi_models.tiny.recipes.speech import Int16

_FIRST, _LAST, _BETWEEN = "^", "$", "_"
_LEAST_HALVED = 1024  # values of a tensor


def halve(source: Path, target: Path) -> None:
    """Write an ONNX model with its large float32 weights in 16 bits, cast before their use."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(source)
    casts = []
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.size >= _LEAST_HALVED:
            name = tensor.name
            tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}.half"))
            casts.append(helper.make_node("Cast", [f"{name}.half"], [name], to=TensorProto.FLOAT))
    for cast in reversed(casts):
        model.graph.node.insert(0, cast)
    onnx.save(model, target)


def token_ids(phonemes: str, table: dict[str, Sequence[int]]) -> list[int]:
    """Return the voice's ids of phonemes, one that means nothing after each.

    Args:
        phonemes: espeak-ng's; unknown ones are left out.
        table: `phoneme_id_map` of the voice's configuration.
    """
    ids = [*table[_FIRST], *table[_BETWEEN]]
    for phoneme in phonemes:
        if phoneme in table:
            ids += [*table[phoneme], *table[_BETWEEN]]
    return [*ids, *table[_LAST]]


class Piper:
    """The voice, on one core."""

    def __init__(self, model: Path, settings: dict[str, Any]):
        """Load it.

        Args:
            model: The ONNX file.
            settings: Its configuration.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
        self._table = settings["phoneme_id_map"]
        self.rate = int(settings["audio"]["sample_rate"])

    def speak(self, phonemes: str, noise: float, stretch: float, rhythm: float) -> Int16:
        """Return samples (n,).

        Args:
            phonemes: espeak-ng's.
            noise: How much it varies.
            stretch: Factor of all durations.
            rhythm: How much durations vary.
        """
        ids = np.array([token_ids(phonemes, self._table)], np.int64)
        lengths = np.array([ids.shape[1]], np.int64)
        scales = np.array([noise, stretch, rhythm], np.float32)
        feed = {"input": ids, "input_lengths": lengths, "scales": scales}
        audio = self._session.run(None, feed)[0].reshape(-1)
        made: Int16 = (np.clip(audio, -1, 1) * 32767).astype(np.int16)
        return made


def _spoken(
    model: Path, texts: Sequence[str], seed: int, until_s: float
) -> Iterator[tuple[int, str, Int16 | None]]:
    settings = json.loads(Path(f"{model}.json").read_text())
    piper, reader, dice = Piper(model, settings), Phonemizer(), random.Random(seed)
    for text in texts:
        if time.time() > until_s:
            break
        warp = 2 ** dice.gauss(0.05, 0.22)  # a man's voice, from lower to a woman's
        stretch = warp * dice.uniform(0.8, 1.25)
        phonemes = reader.read_ipa(text)
        said = piper.speak(phonemes, dice.uniform(0.4, 1.0), stretch, dice.uniform(0.5, 1.1))
        yield 0, text, fitted(said, piper.rate, warp)


def _run(job: tuple[Path, Path, list[str], int, float]) -> float:
    stem, model, texts, seed, until_s = job
    return write_unlabelled(stem, _spoken(model, texts, seed, until_s))


def main() -> None:
    """Speak texts, one a line, drawn at random, until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path)
    parser.add_argument("model", type=Path, help="MODEL.onnx, with MODEL.onnx.json beside it")
    parser.add_argument("out", type=Path, help="folder; with --halve, a file")
    parser.add_argument("--halve", action="store_true")
    parser.add_argument("--number", type=int, default=40_000)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=37)
    args = parser.parse_args()
    if args.halve:
        halve(args.model, args.out)
        return
    begin = time.time()
    args.out.mkdir(parents=True, exist_ok=True)
    texts = args.texts.read_text().splitlines()
    random.Random(args.seed).shuffle(texts)
    size = -(-min(len(texts), args.number) // args.processes)
    jobs = [
        (args.out / f"piper{n:04d}", args.model, texts[n * size : (n + 1) * size], args.seed + n,
         begin + args.seconds)
        for n in range(args.processes)
    ]  # fmt: skip
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        hours = sum(pool.imap_unordered(_run, jobs)) / 3600
    print(f"{hours:.1f} hours of Piper's speech in {time.time() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
