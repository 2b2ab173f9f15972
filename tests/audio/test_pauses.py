"""Cuts are in pauses, wherever they are: silence, low noise, hum, between voices of any level."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from izwi.audio.pauses import find_pauses, frame_levels_db
from izwi.audio.split import cut_rules, split_at_silence

RATE = 8000
LIMIT_S, SEARCH_S = 8.0, 1.0
BACKGROUNDS = ("silence", "noise", "hum", "offset")


def sentence(seconds, seed, level_db=-20.0):
    """Syllables of 150 to 300 ms without a pause; their ends are 15 dB weaker."""
    rng = np.random.default_rng(seed)
    samples = rng.standard_normal(int(seconds * RATE))
    time = np.arange(len(samples)) / RATE
    weaker_db = 15.0 * np.abs(np.sin(np.pi * time / rng.uniform(0.15, 0.3)))
    return (samples * 10 ** ((level_db - weaker_db) / 20)).astype(np.float32)


def background(kind, size, seed=0):
    """Low noise, 50 dB below full scale, or none."""
    if kind == "noise":
        return np.random.default_rng(seed).standard_normal(size).astype(np.float32) * 10**-2.5
    if kind == "hum":
        return np.float32(10**-2.3) * np.sin(2 * np.pi * 50 * np.arange(size) / RATE, dtype="f4")
    return np.full(size, 0.05 if kind == "offset" else 0.0, np.float32)


def laid_out(sentences, gaps, kind):
    """Samples, and the range of each sentence in them."""
    parts, ranges, size = [], [], 0
    for gap, said in zip(gaps, [*sentences, np.zeros(0, np.float32)], strict=True):
        parts += [np.zeros(int(gap * RATE), np.float32), said]
        ranges.append((size + len(parts[-2]), size + len(parts[-2]) + len(said)))
        size = ranges[-1][1]
    whole = np.concatenate(parts)
    return whole + background(kind, size), ranges[:-1]


def is_cut(ranges, cuts):
    return any(start < cut < stop for start, stop in ranges for cut in cuts)


def cuts_of(samples, overrun=False):
    pieces = split_at_silence(samples, RATE, limit_s=LIMIT_S, search_s=SEARCH_S, overrun=overrun)
    assert [0, *(stop for _, stop in pieces)] == [*(start for start, _ in pieces), len(samples)]
    assert max(stop - start for start, stop in pieces) <= (LIMIT_S + SEARCH_S * overrun) * RATE
    return [stop for _, stop in pieces[:-1]]


gap = st.one_of(st.floats(0.55, 2.0), st.floats(2.0, 30.0))
edge = st.one_of(st.just(0.0), gap)


@settings(max_examples=40)
@given(
    lengths=st.lists(st.floats(0.4, 6.5), min_size=3, max_size=3),
    gaps=st.tuples(edge, gap, gap, edge),
    kind=st.sampled_from(BACKGROUNDS),
    overrun=st.booleans(),
    seed=st.integers(0, 99),
)
def test_no_sentence_between_pauses_is_cut(lengths, gaps, kind, overrun, seed):
    sentences = [sentence(length, seed + n) for n, length in enumerate(lengths)]
    samples, ranges = laid_out(sentences, gaps, kind)
    assert not is_cut(ranges, cuts_of(samples, overrun))


@pytest.mark.parametrize("lead_s", [4.6, 5.0, 5.5, 6.0, 11.0, 12.0, 30.0])
@pytest.mark.parametrize("kind", BACKGROUNDS)
def test_silence_before_a_sentence_is_a_piece_without_it(lead_s, kind):
    samples, ranges = laid_out([sentence(6.0, 1)], [lead_s, 0.5], kind)
    last = cuts_of(samples)[-1]
    assert ranges[0][0] - 1.5 * RATE <= last <= ranges[0][0] - 0.15 * RATE


def test_a_long_pause_is_a_piece_of_its_own():
    samples, [(_, first), (second, _)] = laid_out(
        [sentence(2.0, 1), sentence(7.0, 2)], [0.0, 9.0, 0.0], "noise"
    )
    cuts = cuts_of(samples)
    assert cuts[0] - first == pytest.approx(0.5 * RATE, abs=0.05 * RATE)
    assert 0.15 * RATE <= second - cuts[-1] <= 0.8 * RATE


def test_the_last_clear_pause_is_taken_so_that_pieces_stay_long():
    samples, ranges = laid_out(
        [sentence(1.5, n) for n in range(5)], [0.0, 0.8, 0.6, 0.6, 0.6, 0.0], "silence"
    )
    (first, *_) = cuts_of(samples)
    assert ranges[2][1] < first < ranges[3][0]


def test_a_short_pause_is_better_than_none():
    samples, ranges = laid_out([sentence(3.5, 1), sentence(6.0, 2)], [0.0, 0.3, 0.0], "silence")
    (cut,) = cuts_of(samples)
    assert ranges[0][1] < cut < ranges[1][0]


def test_a_quiet_voice_is_not_taken_for_a_pause():
    """Twenty decibels below the other; the pause after it is found."""
    voices = [sentence(2.0, 1), sentence(3.0, 2, level_db=-40.0), sentence(4.0, 3)]
    samples, ranges = laid_out(voices, [0.0, 0.6, 0.6, 0.0], "silence")
    assert not is_cut(ranges, cuts_of(samples))


@pytest.mark.parametrize("kind", ["noise", "silence", "hum"])
def test_audio_of_one_level_has_no_pauses(kind):
    assert find_pauses(frame_levels_db(background(kind, 10 * RATE), RATE)) == []


def test_a_click_does_not_divide_a_pause():
    samples, ranges = laid_out([sentence(2.0, 1), sentence(2.0, 2)], [0.0, 1.5, 0.0], "silence")
    middle = (ranges[0][1] + ranges[1][0]) // 2
    samples[middle : middle + RATE // 50] = 0.9
    pauses = find_pauses(frame_levels_db(samples, RATE))
    assert [round((stop - start) * 0.02, 1) for start, stop in pauses] == [1.5]


@settings(max_examples=40)
@given(
    lengths=st.lists(st.floats(0.4, 6.0), min_size=2, max_size=2),
    gaps=st.tuples(edge, gap, edge),
    kind=st.sampled_from(BACKGROUNDS),
)
def test_what_was_held_safe_from_a_cut_is_seldom_behind_it(lengths, gaps, kind):
    """The earliest cut of the audio so far, for each second of it, against the cut itself."""
    samples, _ = laid_out([sentence(length, n) for n, length in enumerate(lengths)], gaps, kind)
    rules = cut_rules(RATE, limit_s=LIMIT_S, search_s=SEARCH_S)
    if len(samples) <= rules.limit:
        return
    window = samples[: rules.enough]
    cut = rules.first_cut(window)
    for so_far in range(RATE, rules.limit, RATE):
        assert rules.earliest_cut(frame_levels_db(window[:so_far], RATE)) <= cut
