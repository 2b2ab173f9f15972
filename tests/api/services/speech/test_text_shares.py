"""A text is cut where its speech was cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi_api.services.speech.text_shares import cut_text, spoken_shares

RATE = 16_000


def parts(text, *shares):
    return [text[start:stop] for start, stop in cut_text(text, shares)]


@pytest.mark.parametrize(
    ("text", "shares", "expected"),
    [
        ("one two", [], ["one two"]),
        ("one two three four", [0.5], ["one two ", "three four"]),
        # a pause is near enough to be meant
        (
            "We met at noon, and went on to the sea",
            [0.5],
            ["We met at noon, ", "and went on to the sea"],
        ),
        # one too far away is not
        ("Yes, " + "on and on " * 6, [0.4], ["Yes, on and on on and on ", "on and on " * 4]),
        # nobody pauses at these
        ("a well-known man's own house", [0.6], ["a well-known man's ", "own house"]),
        ("你好世界，今天天气很好", [0.4], ["你好世界，", "今天天气很好"]),
        ("你好世界今天天气很好", [0.1], ["你", "好世界今天天气很好"]),
        ("word", [0.5], ["", "word"]),
        ("one two", [0.0, 1.0], ["", "one two", ""]),
    ],
)
def test_cuts_are_between_words(text, shares, expected):
    assert parts(text, *shares) == expected


@given(st.text(), st.lists(st.floats(0, 1), max_size=5).map(sorted))
def test_parts_join_up_to_the_text(text, shares):
    assert len(parts(text, *shares)) == len(shares) + 1
    assert "".join(parts(text, *shares)) == text


def test_pauses_are_no_speech():
    tone = np.sin(np.arange(RATE) / 5).astype(np.float32)
    pause = np.full(3 * RATE, 1e-3, np.float32)
    samples = np.concatenate([tone, pause, tone, tone, tone])
    assert spoken_shares(samples, RATE, [2 * RATE, 5 * RATE]) == pytest.approx(
        [0.25, 0.5], abs=0.01
    )
    assert spoken_shares(np.zeros(0, np.float32), RATE, []) == []
    assert spoken_shares(np.zeros(RATE, np.float32), RATE, [100]) == [0.0]
