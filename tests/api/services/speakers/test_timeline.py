"""Turns from speaker vectors of windows."""

from __future__ import annotations

import numpy as np

from izwi_api.services.speakers.diarize import speaker_names, spoken_pieces
from izwi_api.services.speakers.timeline import (
    HOP_S,
    SAMPLE_RATE,
    WINDOW_S,
    Turn,
    label_turns,
    speech_windows,
)

S = SAMPLE_RATE


def vector(window, spans):
    """The direction of each voice, by the share of the window in which it is heard."""
    total = np.zeros(8)
    for start_s, stop_s, voice in spans:
        shared = min(window.stop, stop_s * S) - max(window.start, start_s * S)
        total[voice] += max(0.0, shared / S)
    return total


def turns_of(regions_s, spans):
    regions = [(int(a * S), int(b * S)) for a, b in regions_s]
    windows = speech_windows(regions, int((regions_s[-1][1] + 1) * S))
    vectors = np.array([vector(window, spans) for window in windows], np.float32)
    turns, found = label_turns(regions, windows, vectors, 0.45)
    return [(t.start / S, t.stop / S, t.speaker) for t in turns], found


def test_windows_cover_each_region_and_short_ones_reach_beyond_it():
    windows = speech_windows([(S, 5 * S), (8 * S, int(8.3 * S))], 10 * S)
    long = [w for w in windows if w.region == 0]
    assert long[0].start == S
    assert long[-1].stop >= int(5 * S - HOP_S * S / 2)
    assert all(w.stop - w.start == WINDOW_S * S for w in long)
    short = windows[-1]
    assert short.stop - short.start >= 0.99 * S
    assert short.start < 8 * S
    assert short.stop > 8.3 * S


def test_a_change_inside_a_region_is_found_within_half_a_second():
    turns, _ = turns_of([(0.5, 8.5)], [(0.5, 4.5, 0), (4.5, 8.5, 1)])
    (first_start, first_stop, a), (second_start, second_stop, b) = turns
    assert (a, b, first_start, second_stop) == (0, 1, 0.5, 8.5)
    assert abs(first_stop - 4.5) <= 0.5
    # windows over the change have a share of both, as if both were heard at once
    assert 0.0 <= first_stop - second_start <= 1.0


def test_speakers_are_numbered_as_they_are_heard():
    spans = [(0, 3, 5), (3.5, 6.5, 2), (7, 10, 5)]
    turns, found = turns_of([(a, b) for a, b, _ in spans], spans)
    assert [speaker for *_, speaker in turns] == [0, 1, 0]
    assert found.argmax(axis=1).tolist() == [5, 2]


def test_two_voices_at_once_are_two_turns():
    spans = [(0, 8, 0), (5, 12, 1)]
    turns, _ = turns_of([(0, 12)], spans)
    overlap = max(0.0, turns[0][1] - min(t[0] for t in turns if t[2] != turns[0][2]))
    assert {speaker for *_, speaker in turns} == {0, 1}
    assert 1.0 <= overlap <= 4.0


def test_no_speech_has_no_turns():
    turns, found = label_turns([], [], np.zeros((0, 0), np.float32), 0.45)
    assert turns == []
    assert len(found) == 0


def test_unknown_speakers_have_letters_that_no_known_one_has():
    assert speaker_names(3, {1: 0}, ["agent"]) == ["A", "agent", "B"]
    assert speaker_names(2, {}, ["A"]) == ["B", "C"]
    assert speaker_names(28, {}, [])[-3:] == ["Z", "AA", "AB"]


class Whole:
    @staticmethod
    def split_audio(samples):
        return [(0, len(samples))]


def test_pieces_do_not_reach_into_the_turn_of_another():
    turns = [Turn(S, 2 * S, 0), Turn(2 * S + 100, 3 * S, 1)]
    pieces = spoken_pieces(Whole, np.zeros(4 * S, np.float32), turns, ["A", "B"], 0.3)
    assert [piece.speaker for piece in pieces] == ["A", "B"]
    assert pieces[0][:2] == (int(0.7 * S), 2 * S + 100)
    assert pieces[1][:2] == (2 * S, int(3.25 * S))
