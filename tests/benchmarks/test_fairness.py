"""Texts of the benchmark are new, each of them, so that no prefix of a text is known."""

from __future__ import annotations

import random

from benchmarks.serving.fairness import LONG_CHARS, Texts


def test_no_sentence_comes_twice_and_long_texts_are_as_long_as_asked() -> None:
    texts = Texts(random.Random(0))
    long = [texts.long(LONG_CHARS) for _ in range(4)]
    assert all(LONG_CHARS - 100 < len(text) <= LONG_CHARS for text in long)
    sentences = [part for text in long for part in text.split(". ")] + [texts.sentence()]
    assert len(set(sentences)) == len(sentences)
    assert Texts(random.Random(0)).long(LONG_CHARS) == long[0]
