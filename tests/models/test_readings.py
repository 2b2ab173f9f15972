"""Six hundred cases of text that is read aloud, whole and in parts (`readings.tsv`)."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.tts.text_normalizers import cases, key
from izwi_models.english.text import say_english
from izwi_models.qwen3_tts.pieces import SpokenStream, joined, sentences, spell_out
from tests.examples import examples

CASES = list(cases())
KINDS = sorted({case.kind for case in CASES})


def read(pieces: list[str]) -> list[str]:
    stream = SpokenStream()
    parts = [part for piece in pieces for part in stream.write(piece)]
    return joined([*parts, *stream.close()])


def test_there_are_six_hundred_cases_of_every_kind() -> None:
    assert len({case.written for case in CASES}) >= 600
    assert min(Counter(case.kind for case in CASES).values()) >= 10
    assert sum(case.source != "izwi" for case in CASES) >= 150


@pytest.mark.parametrize("kind", KINDS)
def test_every_case_has_its_reading(kind: str) -> None:
    wrong = {
        case.written: got
        for case in CASES
        if case.kind == kind and (got := spell_out(case.written)) != case.readings[0]
    }
    assert wrong == {}


@pytest.mark.parametrize("kind", KINDS)
def test_one_cut_changes_nothing(kind: str) -> None:
    """Each case inside a sentence, cut at every eleventh place, and into single characters."""
    for number, case in enumerate(case for case in CASES if case.kind == kind):
        text = f"Hello, {case.written} and so on."
        whole = read([text])
        assert read(list(text)) == whole
        for place in range(number % 11, len(text), 11):
            assert read([text[:place], text[place:]]) == whole, (case.written, place)


@pytest.mark.slow
def test_no_cut_changes_anything() -> None:
    for case in CASES:
        for text in (case.written, f"Hello, {case.written}", f"{case.written}  And so on."):
            whole = read([text])
            for place in range(1, len(text)):
                assert read([text[:place], text[place:]]) == whole, (text, place)


MARKS = ["[", "]", "(", "–", "to", "\x1b[3", "°"]
PARTS = st.sampled_from([case.written for case in CASES] + MARKS)


@examples(60)
@given(st.lists(PARTS, min_size=1, max_size=3), st.sampled_from((" ", "\n", "")), st.data())
def test_cuts_of_joined_cases_change_nothing(
    parts: list[str], space: str, data: st.DataObject
) -> None:
    text = space.join(parts)
    marks = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    edges = [0, *sorted(marks), len(text)]
    assert read([text[first:last] for first, last in pairwise(edges)]) == read([text])


@examples(200)
@given(st.text(alphabet="5019 ,.-–:/'$€%°mkgsxAMCpB²µ[]()=+to", max_size=40))
def test_any_text_becomes_words(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z ,.'?!-]*", spell_out(text))
    assert not re.search(r"\d", say_english(text))


def test_marks_of_sources_end_no_sentence_and_begin_none() -> None:
    text = "Water is wet.[1][2] It flows [citation needed]. It ends[3-5]; then, press [1]."
    assert sentences(text) == ["Water is wet.", "It flows.", "It ends, then, press, one."]


def test_a_word_waits_for_the_next_one_only_where_it_must() -> None:
    stream = SpokenStream()
    assert "".join(part.text for part in stream.write("We walk to the ")) == "We walk to the"
    assert "".join(part.text for part in stream.write("year 1493 to ")) == ""
    read_then = "".join(part.text for part in stream.write("1479 BC and "))
    assert read_then == " year fourteen ninety three to fourteen seventy nine B C and"


@pytest.mark.parametrize("seed", range(3))
def test_a_long_text_is_read_as_its_lines_are(seed: int) -> None:
    drawn = random.Random(seed).sample(CASES, 40)
    whole = " ".join(spell_out(case.written) for case in drawn)
    assert spell_out("\n".join(case.written for case in drawn)) == whole


def test_the_key_ignores_style_and_nothing_else() -> None:
    assert key("The third of May, at five AM") == key("May third at five a m")
    assert key("one hundred and twenty-one metres") == key("One hundred twenty one meter")
    assert key("zero five") == key("oh five")
    assert key("five dollars") != key("five euros")
    assert key("[1]") != key("")
    assert key("fifty") != key("fifteen")
