"""An independent judge of speech: pocketsphinx, restricted to a list of words.

It was trained on human speech and misrecognises half of the words of any synthesiser. Compare only
two voices on the same text.

Needs pocketsphinx (`pip install 'izwi[judge]'`), whose wheel holds an English acoustic model and
the dictionary of Carnegie Mellon University.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from pocketsphinx import Config, Decoder, get_model_path

from izwi.arrays import Float32

RATE = 16_000
_VARIANT = re.compile(r"\(\d+\)$")  # suffix of additional pronunciations
_NEVER = -99.0  # log probability of a word that must never occur


def read_dictionary() -> dict[str, list[str]]:
    """Return the pronunciations of each word in lower case, as phonemes between spaces."""
    found: dict[str, list[str]] = {}
    for line in Path(get_model_path("en-us/cmudict-en-us.dict")).read_text("utf-8").splitlines():
        word, pronunciation = line.split(maxsplit=1)
        found.setdefault(_VARIANT.sub("", word), []).append(pronunciation)
    return found


def unigrams(vocabulary: Iterable[str]) -> str:
    """Return a language model in ARPA's format in which every word is equally likely anywhere."""
    listed = sorted(set(vocabulary))
    even = -math.log10(len(listed) + 1)
    lines = ["\\data\\", f"ngram 1={len(listed) + 2}", "", "\\1-grams:", f"{_NEVER} <s>"]
    lines += [f"{even:.4f} {word}" for word in ("</s>", *listed)]
    return "\n".join([*lines, "", "\\end\\", ""])


class ClosedWords:
    """The recognizer with its list of words."""

    def __init__(self, vocabulary: Iterable[str]):
        """Set the words that may be recognized, in lower case.

        Raises:
            KeyError: The dictionary does not have a word.
        """
        listed, dictionary = sorted(set(vocabulary)), read_dictionary()
        with tempfile.TemporaryDirectory() as folder:
            words, model = Path(folder, "words.dict"), Path(folder, "words.arpa")
            with words.open("w", encoding="utf-8") as sink:
                for word in listed:
                    for number, pronunciation in enumerate(dictionary[word], 1):
                        name = word if number == 1 else f"{word}({number})"
                        sink.write(f"{name} {pronunciation}\n")
            model.write_text(unigrams(listed), encoding="utf-8")
            self._decoder = Decoder(
                Config(
                    hmm=get_model_path("en-us/en-us"),
                    dict=str(words),
                    lm=str(model),
                    samprate=RATE,
                    loglevel="FATAL",
                )
            )

    def transcribe(self, samples: Float32) -> list[str]:
        """Return the words recognized in (n,) samples at 16 kHz, in [-1, 1]."""
        pcm = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
        self._decoder.start_utt()
        self._decoder.process_raw(pcm, no_search=False, full_utt=True)
        self._decoder.end_utt()
        hypothesis = self._decoder.hyp()
        heard = hypothesis.hypstr.split() if hypothesis else []
        return [_VARIANT.sub("", word) for word in heard]
