"""Playback clocks: audio that a listener has left, piece by piece, and until when it is known."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import pytest

from izwi.scheduler.playback import PlaybackClocks

FRAME_S, TARGET_S = 0.1, 0.5


class Piece(NamedTuple):
    key: int
    listener: str
    submitted_s: float


def piece(key: int, listener: str = "ann", at_s: float = 0.0) -> Piece:
    return Piece(key, listener, at_s)


def opened(*pieces: Piece) -> PlaybackClocks:
    listeners = PlaybackClocks(FRAME_S, TARGET_S)
    for one in pieces:
        listeners.add(*one)
    return listeners


def test_audio_of_a_later_piece_adds_no_slack() -> None:
    first, second = piece(0), piece(1)
    listeners = opened(first, second)
    listeners.delivered(second.key, 50, now_s=0.1)
    assert listeners.urgency(first.key, 0.2) == (pytest.approx(0.3), False)
    listeners.delivered(first.key, 2, now_s=0.2)
    assert listeners.urgency(first.key, 0.2) == (pytest.approx(0.2), True)
    # the first goes on for a second at least, then 5 s of the second are there
    assert listeners.urgency(second.key, 0.2) == (pytest.approx(6.2), True)
    listeners.delivered(first.key, 28, now_s=0.3)
    listeners.remove(first.key)
    assert listeners.urgency(second.key, 0.2) == (pytest.approx(8.0), True)


def test_a_piece_that_ended_out_of_turn_counts_once_those_before_it_have() -> None:
    first, second, third = piece(0), piece(1), piece(2)
    listeners = opened(first, second, third)
    listeners.delivered(first.key, 1, now_s=0.0)
    listeners.delivered(second.key, 4, now_s=0.0)
    listeners.remove(second.key)
    assert listeners.urgency(first.key, 0.0)[0] == pytest.approx(0.1)
    assert listeners.urgency(third.key, 0.0)[0] == pytest.approx(1.5), "0.4 s and no more"
    listeners.remove(first.key)
    assert listeners.urgency(third.key, 0.0) == (pytest.approx(0.5), True)
    listeners.delivered(third.key, 1, now_s=2.0)
    assert listeners.urgency(third.key, 2.0)[0] == pytest.approx(0.1), "a gap of 1.5 s was heard"


def test_a_gap_moves_the_clock_on_and_is_counted_in_the_first_piece_alone() -> None:
    first, second = piece(0), piece(1)
    listeners = opened(first, second)
    listeners.delivered(first.key, 1, now_s=0.0)
    listeners.delivered(second.key, 1, now_s=1.0)
    assert listeners.urgency(first.key, 1.0)[0] == pytest.approx(-0.9)
    listeners.delivered(first.key, 1, now_s=1.0)
    assert listeners.urgency(first.key, 1.0)[0] == pytest.approx(0.1)


def test_a_listener_is_known_until_all_has_been_played() -> None:
    first = piece(0)
    listeners = opened(first)
    listeners.delivered(first.key, 30, now_s=0.0)
    listeners.remove(first.key)
    second = piece(1, at_s=1.0)
    listeners.add(*second)
    assert listeners.knows(second.listener)
    assert listeners.urgency(second.key, 1.0) == (pytest.approx(2.0), True)
    listeners.delivered(second.key, 10, now_s=1.0)
    listeners.remove(second.key)
    late = piece(2, at_s=4.5)
    listeners.add(*late)
    assert not listeners.knows(late.listener)
    assert listeners.urgency(late.key, 4.5) == (pytest.approx(0.5), False)


def test_listeners_are_forgotten() -> None:
    listeners = opened()
    for number in range(100):
        sequence = piece(number, f"{number}", at_s=float(number))
        listeners.add(*sequence)
        if number % 2:
            listeners.delivered(sequence.key, 5, now_s=float(number))
        listeners.remove(sequence.key)
    assert len(listeners._clocks) == len(listeners._resting) == 1
    assert not listeners._pieces


def test_a_listener_who_gets_another_piece_in_time_is_known_until_that_has_been_played() -> None:
    first = piece(0)
    listeners = opened(first)
    listeners.delivered(first.key, 30, now_s=0.0)
    listeners.remove(first.key)  # its audio ends at 3
    second = piece(1, at_s=1.0)
    listeners.add(*second)
    listeners.delivered(second.key, 20, now_s=1.0)
    listeners.remove(second.key)  # that of both at 5
    listeners.add(*piece(2, "bob", at_s=4.0))  # another listener, when the first end has passed
    third = piece(3, at_s=4.5)
    listeners.add(*third)
    assert listeners.knows(third.listener)
    assert listeners.urgency(third.key, 4.5) == (pytest.approx(0.5), True)
    listeners.remove(third.key)
    listeners.add(*piece(4, "bob", at_s=5.5))
    assert not listeners.knows(piece(5, at_s=5.5).listener)


def test_a_listener_with_a_piece_in_progress_is_not_forgotten() -> None:
    first = piece(0)
    listeners = opened(first)
    listeners.delivered(first.key, 10, now_s=0.0)
    listeners.remove(first.key)
    second = piece(1, at_s=0.5)
    listeners.add(*second)
    listeners.add(*piece(2, "bob", at_s=9.0))
    assert listeners.knows(second.listener)
    assert listeners.urgency(second.key, 9.0)[1]


def test_a_pause_does_not_reduce_slack() -> None:
    first, second = piece(0), piece(1)
    listeners = opened(first, second)
    listeners.delivered(first.key, 10, now_s=0.0)
    listeners.shift(first.key, 5.0)
    assert listeners.urgency(first.key, 5.0)[0] == pytest.approx(1.0)
    assert listeners.urgency(second.key, 5.0)[0] == pytest.approx(2.0)


def test_only_the_piece_that_is_played_is_late() -> None:
    first, second, third = piece(0), piece(1), piece(2)
    listeners = opened(first, second, third)
    listeners.delivered(first.key, 5, now_s=0.0)
    listeners.delivered(third.key, 5, now_s=0.0)
    assert listeners.urgency(first.key, 10.5)[0] == pytest.approx(-10.0)
    assert listeners.urgency(second.key, 10.5)[0] == pytest.approx(1.0)
    assert listeners.urgency(third.key, 10.5)[0] == pytest.approx(2.5)


def test_a_text_that_has_begun_is_as_urgent_as_any_other_text_and_known_to_have() -> None:
    clocks = PlaybackClocks(None, TARGET_S)
    one = piece(0)
    clocks.add(*one)
    assert clocks.urgency(one.key, 0.2) == (pytest.approx(0.3), False)
    clocks.delivered(one.key, 1, now_s=0.3)
    slack, started = clocks.urgency(one.key, 0.4)
    assert started
    assert clocks.urgency(one.key, 90.0) == (slack, True), "text is not played, so nothing runs out"
    assert slack > 0.0


def test_the_least_slack_is_that_of_answers_that_play_and_go_on() -> None:
    first, second, third = piece(0, "a"), piece(1, "b"), piece(2, "c")
    listeners = opened(first, second, third)
    assert listeners.least_slack_s(0.0) == inf, "none plays"
    listeners.delivered(first.key, 10, now_s=0.0)
    listeners.delivered(second.key, 20, now_s=0.0)
    assert listeners.least_slack_s(0.5) == pytest.approx(0.5)
    listeners.pause(first.key)
    assert listeners.least_slack_s(0.5) == pytest.approx(1.5)
    listeners.shift(first.key, 0.3)
    assert listeners.least_slack_s(0.5) == pytest.approx(0.8)
    listeners.remove(first.key)
    assert listeners.least_slack_s(2.5) == pytest.approx(-0.5)
    assert listeners.gaps_s == 0.0
    listeners.delivered(second.key, 10, now_s=2.5)
    assert listeners.gaps_s == pytest.approx(0.5)
    assert listeners.least_slack_s(2.5) == pytest.approx(1.0)
    listeners.remove(second.key)
    assert listeners.least_slack_s(2.5) == inf


def test_models_that_write_have_no_slack() -> None:
    written = PlaybackClocks(None, 0.5)
    written.add(*piece(0))
    written.delivered(piece(0).key, 1, now_s=0.0)
    assert written.least_slack_s(9.0) == inf
