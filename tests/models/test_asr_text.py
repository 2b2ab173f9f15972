"""Languages, answers and cuts against the reference's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.audio.split import split_at_silence
from izwi.errors import InvalidRequest
from izwi_models.qwen3_asr.text import LANGUAGES, collapse_repeats, language_name, parse_answer
from tests.models.tiny_asr import waveform

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "asr.npz")
ALL = tuple(LANGUAGES.values())


@pytest.mark.parametrize(
    ("raw", "forced", "language", "text"), json.loads(str(GOLDEN["parsed"])), ids=str
)
def test_answers_are_read_as_the_reference_reads_them(raw, forced, language, text):
    transcript = parse_answer(raw, forced)
    # nothing but blanks says nothing, whatever was forced
    assert (transcript.language, transcript.text) == (language, text)


@given(st.text(alphabet="ab ", max_size=120))
def test_collapsing_loses_no_letter_and_stays_short_of_runs(text):
    collapsed = collapse_repeats(text)
    assert set(collapsed) == set(text)
    assert len(collapsed) <= len(text)


def test_there_are_thirty_languages():
    assert len(set(ALL)) == len(LANGUAGES) == 30


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("en", "English"),
        ("EN", "English"),
        ("en-GB", "English"),
        ("english", "English"),
        (" English ", "English"),
        ("zh_CN", "Chinese"),
        ("yue", "Cantonese"),
        ("tl", "Filipino"),
        ("MACEDONIAN", "Macedonian"),
        (None, None),
        ("  ", None),
    ],
)
def test_languages_have_names_and_codes(asked, name):
    assert language_name(asked, ALL) == name


@pytest.mark.parametrize("asked", ["xx", "Klingon", "de"])
def test_a_language_that_the_checkpoint_lacks_is_invalid(asked):
    with pytest.raises(InvalidRequest, match="English") as raised:
        language_name(asked, ("Chinese", "English"))
    assert raised.value.param == "language"


@pytest.mark.parametrize(
    ("seconds", "limit_s", "search_s", "stops"), json.loads(str(GOLDEN["splits"])), ids=str
)
def test_cuts_are_the_references(seconds, limit_s, search_s, stops):
    samples = waveform(seconds)
    pieces = split_at_silence(samples, 16000, limit_s=limit_s, search_s=search_s, overrun=True)
    assert [stop for _, stop in pieces] == stops


@pytest.mark.parametrize("overrun", [True, False])
@pytest.mark.parametrize("rest", [1, 100, 499, 500, 501, 900])
@pytest.mark.parametrize("quiet_at_end", [True, False])
def test_no_piece_is_shorter_than_the_minimum_however_quiet_its_end_is(overrun, rest, quiet_at_end):
    rate, limit_s = 1000, 4.0
    length = int(rate * limit_s) + rest
    samples = np.linspace(1.0, 0.0, length, dtype=np.float32)
    samples = samples if quiet_at_end else samples[::-1]
    pieces = split_at_silence(samples, rate, limit_s=limit_s, search_s=1.0, overrun=overrun)
    assert len(pieces) > 1
    assert min(stop - start for start, stop in pieces) >= 500


@given(
    length=st.integers(0, 20_000),
    limit_s=st.floats(1.0, 6.0),
    seed=st.integers(0, 2**32 - 1),
    overrun=st.booleans(),
)
def test_pieces_join_up_and_keep_their_limit(length, limit_s, seed, overrun):
    rate = 1000
    samples = np.random.default_rng(seed).standard_normal(length).astype(np.float32)
    search_s = limit_s / 8
    pieces = split_at_silence(samples, rate, limit_s=limit_s, search_s=search_s, overrun=overrun)
    assert pieces[0][0] == 0
    assert pieces[-1][1] == length
    assert [stop for _, stop in pieces[:-1]] == [start for start, _ in pieces[1:]]
    longest = max(stop - start for start, stop in pieces)
    assert longest <= rate * (limit_s + (search_s if overrun else 0))
    if len(pieces) > 1:
        shortest = min(stop - start for start, stop in pieces)
        assert shortest >= rate * min(0.5, limit_s / 8) - 2
