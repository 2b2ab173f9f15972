"""Training utterances that are cut off, as a live session transcribes them during speech.

A transcriber trained only on whole utterances guesses the rest: it took the beginning of "Stop" for
a longer word that does not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.tiny.recipes.data import Corpus, Int64
from izwi_models.tiny.recipes.speech import FRAME, LABEL, SAMPLE_RATE, SpokenWord

_HEARD_SHARE = 0.7  # a word counts as heard after this share of its duration
_NEVER = 2**30  # more labels than any utterance has
_LABEL_MS = 1000 * LABEL / SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where the utterances of a batch end.

    Attributes:
        is_cut: (rows,) bool, whether the utterance is cut off.
        labels: (rows,) its length in labels of 20 ms.
        tokens: (rows,) number of text ids in the answer.
    """

    is_cut: Tensor
    labels: Tensor
    tokens: Tensor


class Beginnings:
    """The places where each utterance may be cut off, and the words up to there."""

    def __init__(self, corpus: Corpus, words: list[list[SpokenWord]], tokenizer: QwenTokenizer):
        """Find the words of each text among its ids.

        Args:
            corpus: The utterances.
            words: Words of each utterance, with times.
            tokenizer: Splits texts into ids.
        """
        ids = [tokenizer.encode(text) for text in corpus.texts]
        num_bytes = {index: len(tokenizer.spell(index)) for index in {*chain(*ids)}}
        rows = [
            heard_words(text, [num_bytes[index] for index in row], spoken)
            for text, row, spoken in zip(corpus.texts, ids, words, strict=True)
        ]
        most = max(map(len, rows))
        table = np.full((len(rows), most, 2), (_NEVER, 0), np.int64)
        for number, row in enumerate(rows):
            table[number, : len(row)] = np.array(row).reshape(-1, 2)
        placed = torch.from_numpy(table).to(corpus.device)
        self._labels, self._tokens = placed[..., 0], placed[..., 1]
        self._whole = corpus.device_frames * (FRAME // LABEL)

    def draw(self, items: Tensor, share: float) -> Cuts:
        """Cut a share of a batch, mostly early in the utterance.

        Args:
            items: (rows,) indices of utterances.
            share: Probability that an utterance is cut.
        """
        labels, whole = self._labels[items], self._whole[items]
        first = labels[:, 0].minimum(whole)
        early = torch.rand(len(items), device=items.device) ** 2
        cut = first + (early * (whole - first)).long()
        count = (labels <= cut[:, None]).sum(1)
        tokens = self._tokens[items].gather(1, (count - 1).clamp_min(0)[:, None])[:, 0]
        is_cut = (torch.rand(len(items), device=items.device) < share) & (count > 0)
        return Cuts(is_cut, torch.where(is_cut, cut, whole), tokens)


def heard_words(
    text: str, num_bytes: Sequence[int], spoken: Sequence[SpokenWord]
) -> list[tuple[int, int]]:
    """List possible last words of an answer: (labels until it is heard, ids up to it).

    Words that are pronounced as one count as one. Punctuation is included only after the last word,
    because a cut-off sentence has none.

    Args:
        text: The utterance's text.
        num_bytes: Number of bytes of each of its ids.
        spoken: Its words in order.
    """
    ends: Int64 = np.cumsum([0, *num_bytes])
    rows: list[tuple[int, int]] = []
    for number, word in enumerate(spoken):
        is_last = number + 1 == len(spoken)
        stop = len(text) if is_last else spoken[number + 1].place
        part = text[:stop]
        part = part if is_last else part.rstrip(" \"'()-–—,;:.!?")
        place = len(part.encode())
        count = int(np.searchsorted(ends, place))
        is_border = count < len(ends) and int(ends[count]) == place
        if is_border and count > (rows[-1][1] if rows else 0):
            heard_ms = word.start_ms + _HEARD_SHARE * (word.end_ms - word.start_ms)
            rows.append((-int(-heard_ms // _LABEL_MS), count))
    return rows
