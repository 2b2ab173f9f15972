"""What benchmarks count as audible."""

from __future__ import annotations

import numpy as np

from benchmarks.measure import AUDIBLE, AUDIBLE_BLOCK, audible_blocks


def test_a_click_at_the_start_of_a_stream_is_not_audible_and_speech_is() -> None:
    samples = np.zeros(10 * AUDIBLE_BLOCK, np.float32)
    samples[0] = 3 * AUDIBLE
    samples[4 * AUDIBLE_BLOCK : 6 * AUDIBLE_BLOCK] = 1.1 * AUDIBLE
    samples[8 * AUDIBLE_BLOCK : 9 * AUDIBLE_BLOCK] = 0.9 * AUDIBLE
    assert audible_blocks(samples).tolist() == [4, 5]
    assert audible_blocks(samples[:AUDIBLE_BLOCK]).tolist() == []
    assert audible_blocks(samples[:0]).tolist() == []
