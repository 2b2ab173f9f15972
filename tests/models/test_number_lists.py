"""Numbers in a list are spoken while the list is still being written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from izwi_models.qwen3_tts.pieces import SpokenStream, joined

WORDS = st.sampled_from(
    [
        *("1,", "2,", "20,", "555,", "1999,", "2024,", "1000000,"),
        *("3", "4.", "4.5,", "$5,", "(1,", "7)", "6;", "-8,", "9th,", "10%,", "1/2,", "12:30,"),
        *("May", "May,", "and", "km", "km,", "No.", "pm,", "to", "-", "+", "million,", "St.", "x"),
    ]
)


def spoken(texts):
    stream = SpokenStream()
    parts = [stream.write(text) for text in texts]
    return parts, [*(part for some in parts for part in some), *stream.close()]


def test_a_list_is_spoken_two_numbers_behind_its_end():
    numbers = [f"{number}, " for number in range(1, 200)]
    parts, _ = spoken(numbers)
    said = 0
    for written, some in enumerate(parts, start=1):
        said += sum("," in part.text or part.text == "One" for part in some)
        assert said >= written - 3


def test_a_year_stays_with_its_date():
    parts, _ = spoken(["May ", "2, ", "1999, ", "2000, ", "2001, ", "2002, "])
    text = "".join(part.text for some in parts for part in some)
    assert text.startswith("May second, nineteen ninety nine, two thousand")


@given(st.lists(WORDS, min_size=1, max_size=12))
def test_lists_are_read_as_a_whole_text(words):
    texts = [f"{word} " for word in words]
    _, parts = spoken(texts)
    _, whole = spoken(["".join(texts)])
    assert joined(parts) == joined(whole)
