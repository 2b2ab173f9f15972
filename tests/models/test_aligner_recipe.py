"""What the aligner is trained on: the times of words that the synthesiser tells."""

from __future__ import annotations

import pytest

from izwi_models.tiny.recipes.aligner import known_times
from izwi_models.tiny.recipes.speech import SpokenWord, on_words, time_words

TEXT = "Put it on the table, now."
# "on the" is said as one; the pause before "now" begins at 900 ms
SPOKEN = [
    SpokenWord(0, 0.0, 150.0),
    SpokenWord(4, 150.0, 300.0),
    SpokenWord(7, 300.0, 500.0),
    SpokenWord(14, 500.0, 900.0),
    SpokenWord(21, 1100.0, 1400.0),
]


def test_a_word_ends_at_the_next_one_or_at_a_pause() -> None:
    begins = [(word.place, word.start_ms) for word in SPOKEN]
    events = [(10.0, "p"), (900.0, "_:"), (1100.0, "_"), (1120.0, "n"), (1400.0, "_:")]
    assert time_words(begins, events) == SPOKEN


def test_an_event_at_the_end_of_a_clause_is_no_word() -> None:
    begins = [(word.place, word.start_ms) for word in SPOKEN]
    heard = [*begins[:4], (-1, 1100.0), begins[4], (TEXT.index(" now"), 1408.0)]
    assert on_words(TEXT, heard) == begins


def test_the_event_of_a_phrase_stands_on_its_first_letter() -> None:
    heard = [(0, 0.0), (len("That rule n"), 400.0), (len("That rule no "), 550.0)]
    begins = [(0, 0.0), (len("That rule "), 400.0), (len("That rule no "), 550.0)]
    assert on_words("That rule no longer", heard) == begins


@pytest.mark.parametrize(
    ("text", "spoken", "times"),
    [
        (TEXT, SPOKEN, [0, 150, 150, 300, 300, -1, -1, 500, 500, 900, 1100, 1400]),
        ("of the", [SpokenWord(0, 10.0, 90.0)], [10, -1, -1, 90]),
        ("now", [SpokenWord(0, 10.0, 90.0)], [10, 90]),
    ],
)
def test_borders_within_words_that_are_said_as_one_are_unknown(text, spoken, times) -> None:
    assert known_times(text, spoken) == times
