"""Pauses inside utterances of the corpus."""

from __future__ import annotations

import numpy as np

from izwi_models.tiny.recipes.data import Corpus, Int64
from izwi_models.tiny.recipes.speech import FRAME, LABEL

_LABELS = FRAME // LABEL  # of a codec frame
_LEAST_PAUSE = 2  # labels of silence


def longest_pauses(corpus: Corpus, silences: list[int]) -> Int64:
    """The middle of the longest pause inside each utterance, in labels; 0 where there is none.

    Args:
        corpus: Utterances, which begin and end in silence.
        silences: Numbers of the phonemes that are none.
    """
    still = np.isin(corpus.phones.cpu().numpy(), silences)
    turns = np.flatnonzero(np.diff(still)) + 1
    begins = turns[still[turns]]
    ends = turns[~still[turns]]
    ends = ends[np.searchsorted(ends, begins[:1])[0] :] if len(begins) else ends
    count = min(len(begins), len(ends))
    begins, ends = begins[:count], ends[:count]
    starts = corpus.starts * _LABELS
    owner = np.searchsorted(starts, begins, "right") - 1
    inner = (ends < starts[owner] + corpus.frames[owner] * _LABELS) & (
        ends - begins >= _LEAST_PAUSE
    )
    begins, ends, owner = begins[inner], ends[inner], owner[inner]
    order = np.argsort(ends - begins, kind="stable")  # the longest is written last
    places = np.zeros(len(corpus), np.int64)
    places[owner[order]] = ((begins + ends) // 2 - starts[owner])[order]
    return places
