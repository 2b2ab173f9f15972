"""English text is normalized as people say it, however it is cut while it is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi_models.english.numbers import cardinal, decade, fraction, ordinal, year
from izwi_models.qwen3_tts.pieces import SpokenStream, joined, sentences, spell_out

LINES = Path(__file__).with_name("english.tsv").read_text(encoding="utf-8").splitlines()[1:]
CASES = [tuple(line.split("\t")) for line in LINES]


def test_there_are_four_hundred_cases() -> None:
    assert len(CASES) >= 400


@pytest.mark.parametrize(("text", "spoken"), CASES, ids=[text for text, _ in CASES])
def test_cases(text: str, spoken: str) -> None:
    assert spell_out(text) == spoken
    assert re.fullmatch(r"[A-Za-z ,.'?!-]*", spoken)


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("I saw Dr. Smith. He left.", ["I saw Doctor Smith.", "He left."]),
        ("Cats, dogs, etc. They left.", ["Cats, dogs, et cetera.", "They left."]),
        ("At 5 p.m. we ate. At 6 p.m. They left.", None),
        ("J. K. Rowling wrote. So do I. Really.", ["J K Rowling wrote.", "So do I.", "Really."]),
        ("# Title\n- one\n- two\n", ["Title.", "One.", "Two."]),
        ("```python\nprint\n```\nDone", ["Print.", "Done."]),
    ],
)
def test_abbreviations_end_no_sentence_and_lines_do(text: str, spoken: list[str] | None) -> None:
    expected = spoken or ["At five p m we ate.", "At six p m.", "They left."]
    assert sentences(text) == expected


WORDS = st.sampled_from(
    [text for text, _ in CASES]
    + ["5", "km", "$3", "million", "No.", "St.", "March", "2024", "in", "1905", "-", "(", "p.m."]
)


@given(st.lists(WORDS, min_size=1, max_size=4), st.sampled_from([" ", "\n", "  "]), st.data())
def test_cuts_while_it_is_written_change_nothing(
    words: list[str], space: str, data: st.DataObject
) -> None:
    text = space.join(words)
    whole = SpokenStream()
    expected = joined([*whole.write(text), *whole.close()])
    stream, parts, rest = SpokenStream(), [], text
    while rest:
        count = data.draw(st.integers(1, 12))
        parts += stream.write(rest[:count])
        rest = rest[count:]
    assert joined([*parts, *stream.close()]) == expected


def test_a_plain_word_is_said_as_soon_as_it_ends() -> None:
    stream = SpokenStream()
    assert "".join(part.text for part in stream.write("Hello there ")) == "Hello there"
    assert "".join(part.text for part in stream.write("my friend")) == " my"


def test_numbers() -> None:
    assert cardinal("12,345.60") == "twelve thousand three hundred and forty five point six zero"
    assert [year(n) for n in (1000, 1900, 1905, 1987, 2000, 2009, 2010)] == [
        "one thousand",
        "nineteen hundred",
        "nineteen oh five",
        "nineteen eighty seven",
        "two thousand",
        "two thousand and nine",
        "twenty ten",
    ]
    assert [decade(n) for n in (80, 1900, 1910, 1990, 2000, 2020)] == [
        "eighties",
        "nineteen hundreds",
        "nineteen tens",
        "nineteen nineties",
        "two thousands",
        "twenty twenties",
    ]
    assert (ordinal(101), fraction(1, 2), fraction(5, 8)) == (
        "one hundred and first",
        "one half",
        "five eighths",
    )


@pytest.mark.parametrize(
    ("number", "spoken"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (90, "ninety"),
        (400, "four hundred"),
        (1_005, "one thousand and five"),
        (1_100, "one thousand one hundred"),
        (2_000_017, "two million and seventeen"),
        (7_000_300_000, "seven billion three hundred thousand"),
        (
            999_020_000_000_642,
            "nine hundred and ninety nine trillion twenty billion six hundred and forty two",
        ),
        (10**15, "one zero zero zero zero zero zero zero zero zero zero zero zero zero zero zero"),
    ],
)
def test_cardinals_of_any_length(number: int, spoken: str) -> None:
    assert cardinal(str(number)) == spoken


def test_ordinals() -> None:
    ordinals = "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh"
    assert [ordinal(n) for n in range(12)] == ordinals.split()
    assert [ordinal(n) for n in (12, 15, 20, 21, 30, 99, 1000)] == [
        *("twelfth", "fifteenth", "twentieth", "twenty first"),
        *("thirtieth", "ninety ninth", "one thousandth"),
    ]
    assert spell_out(f"The {'9' * 40}th.") == f"The {'nine ' * 39}ninth."
