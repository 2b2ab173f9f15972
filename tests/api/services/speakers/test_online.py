"""Speakers of a session, one stretch of speech after another."""

from __future__ import annotations

from itertools import islice

import numpy as np

from izwi_api.services.speakers.online import MAX_SPEAKERS, OnlineSpeakers, letters_without
from izwi_api.services.speakers.timeline import SAMPLE_RATE, speech_windows

S = SAMPLE_RATE
SIZE = 80


def direction(voice):
    return np.eye(SIZE, dtype=np.float32)[voice]


def said(speakers, *parts):
    """Names in a stretch in which each voice (a vector) speaks for so many seconds."""
    regions, starts = [], []
    end = 0
    for _, seconds in parts:
        regions.append((end, end + int(seconds * S)))
        starts.append(end)
        end += int(seconds * S) + S
    windows = speech_windows(regions, end)
    vectors = np.array([parts[window.region][0] for window in windows], np.float32)
    return [name for _, name in speakers.add(regions, windows, vectors)]


def test_a_voice_that_returns_has_its_name():
    speakers = OnlineSpeakers(0.45)
    assert said(speakers, (direction(0), 3)) == ["A"]
    assert said(speakers, (direction(1), 3)) == ["B"]
    assert said(speakers, (direction(0), 2), (direction(1), 2)) == ["A", "B"]


def test_known_speakers_have_their_names_and_their_letters_are_left_out():
    speakers = OnlineSpeakers(0.45, [("ann", direction(3)), ("A", direction(4))])
    assert said(speakers, (direction(3), 2)) == ["ann"]
    assert said(speakers, (direction(0), 2)) == ["B"]
    assert said(speakers, (direction(4), 2)) == ["A"]


def test_a_short_sound_makes_no_new_speaker_and_no_known_one():
    speakers = OnlineSpeakers(0.45, [("ann", direction(3))])
    assert said(speakers, (direction(0), 2)) == ["A"]
    unsure = 0.4 * direction(3) + 0.3 * direction(0) + 0.9 * direction(7)
    assert said(speakers, (unsure, 0.4)) == ["A"]
    assert said(speakers, (direction(7), 2)) == ["B"]  # the sound did not change A


def test_two_speakers_that_turn_out_to_be_one_are_joined():
    speakers = OnlineSpeakers(0.45)
    between = direction(0) + direction(1)
    assert said(speakers, (direction(0), 2)) == ["A"]
    assert said(speakers, (direction(1), 2)) == ["B"]
    assert said(speakers, (between, 20)) == ["A"]
    assert said(speakers, (direction(1), 2)) == ["A"]
    assert said(speakers, (direction(2), 2)) == ["C"]  # B is not used again


def test_known_speakers_are_never_joined():
    speakers = OnlineSpeakers(0.45, [("ann", direction(0)), ("bea", direction(1))])
    assert said(speakers, (direction(0) + direction(1), 30)) == ["ann"]
    assert said(speakers, (direction(1), 2)) == ["bea"]


def test_voices_beyond_the_limit_go_to_the_most_similar_speaker():
    speakers = OnlineSpeakers(0.45)
    for voice in range(MAX_SPEAKERS):
        said(speakers, (direction(voice), 2))
    late = 0.3 * direction(2) + direction(MAX_SPEAKERS + 1)
    assert said(speakers, (late, 2)) == ["C"]


def test_no_windows_have_no_turns():
    assert OnlineSpeakers(0.45).add([], [], np.zeros((0, 0), np.float32)) == []


def test_letters_go_on_after_z():
    assert list(islice(letters_without(["B"]), 27))[-3:] == ["Z", "AA", "AB"]
