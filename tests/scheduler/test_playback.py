"""Slack, gaps and chunks: the clock of a listener."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.scheduler.playback import (
    Gap,
    PlaybackClocks,
    chunk_frames,
    find_gaps,
    frames_to_vocode,
    margin_s,
    slack_s,
    underrun_s,
)

chunks = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), min_size=1, max_size=20).map(
    lambda pairs: sorted((arrival / 10, audio / 10) for arrival, audio in pairs)
)


def test_slack_counts_down_to_the_first_audio_and_then_to_the_next_gap() -> None:
    assert slack_s(10.0, 9.5, None, 0.0, 0.75) == 0.25
    assert slack_s(11.0, 9.5, None, 0.0, 0.75) == -0.75
    assert slack_s(12.0, 9.5, 11.0, 1.5, 0.75) == 0.5
    assert slack_s(13.0, 9.5, 11.0, 1.5, 0.75, gaps_s=0.75) == 0.25


def test_margin_is_what_is_left_when_the_chunk_comes() -> None:
    assert margin_s(0.5, num_missing=4, frame_s=0.1) == pytest.approx(0.1)
    assert margin_s(0.5, num_missing=8, frame_s=0.1) == pytest.approx(-0.3)


def test_gaps_are_where_audio_ran_out() -> None:
    heard = [(1.0, 0.5), (1.2, 0.5), (2.5, 0.1), (2.75, 1.0)]
    assert find_gaps(heard) == [Gap(2.0, 0.5), Gap(pytest.approx(2.6), pytest.approx(0.15))]
    assert underrun_s(heard) == pytest.approx(0.65)
    assert underrun_s([]) == 0.0


@given(heard=chunks)
def test_a_gap_is_as_long_as_the_slack_was_negative(heard: list[tuple[float, float]]) -> None:
    """Gaps found afterwards are those that slack predicted at each arrival."""
    first_s, audio_s, gaps_s = heard[0][0], 0.0, 0.0
    for arrival_s, chunk_s in heard:
        slack = slack_s(arrival_s, 0.0, first_s, audio_s, 0.0, gaps_s=gaps_s)
        gaps_s += max(0.0, -slack)
        audio_s += chunk_s
    assert underrun_s(heard) == pytest.approx(gaps_s, abs=1e-9)
    # playing ends when all was heard and all gaps were waited for
    assert max(a for a, _ in heard) <= first_s + audio_s + gaps_s + 1e-9


@given(
    frames=st.integers(0, 60),
    vocoded=st.integers(0, 60),
    num_chunks=st.integers(0, 9),
    ended=st.booleans(),
)
def test_audio_never_exceeds_frames_and_an_ended_stream_drains(
    frames: int, vocoded: int, num_chunks: int, ended: bool
) -> None:
    vocoded = min(vocoded, frames)
    ramp = (1, 2, 4, 8, 12)
    chunk = chunk_frames(num_chunks, ramp)
    count = frames_to_vocode(frames - vocoded, chunk, ended=ended)
    assert 0 <= count <= min(frames - vocoded, chunk)
    if ended and frames > vocoded:
        assert count > 0


def test_slack_is_counted_when_audio_is_delivered_to_a_listener_who_plays() -> None:
    clocks = PlaybackClocks(0.1, 0.5)
    clocks.add(1, "a", 10.0)
    clocks.delivered(1, 10, 11.0)  # the first audio is late or not, but ends no playback
    assert sum(clocks.slacks_s.figures.values()) == 0
    clocks.delivered(1, 10, 11.7)  # 0.3 s before the end of the first second
    clocks.delivered(1, 10, 13.5)  # 0.5 s after the end of the second one
    figures = clocks.slacks_s.figures
    assert figures["slack_le_0.5"] == figures["slack_le_-0.2"] == 1
    assert figures["slack_sum"] == pytest.approx(-0.2)
    assert sum(figures.values()) == pytest.approx(2 - 0.2)


def test_slack_of_what_nobody_plays_yet_is_not_counted() -> None:
    clocks = PlaybackClocks(0.1, 0.5)
    clocks.add(1, "a", 10.0, streams=False)
    clocks.add(2, "b", 10.0)
    clocks.add(3, "b", 10.0)
    for at_s in (11.0, 12.0):
        clocks.delivered(1, 10, at_s)
        clocks.delivered(3, 10, at_s)  # the piece before it is played first
    assert sum(clocks.slacks_s.figures.values()) == 0
