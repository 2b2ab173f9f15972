"""How many engines a load needs."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.errors import InvalidRequest
from izwi.router.scaling import EngineFigures, ScalingRules, figures_of, wanted_engines

RULES = ScalingRules(streams_each=10, least_slack_s=0.3, first_audio_s=0.2)


def engines(*running, waiting=0.0, slack_s=5.0):
    return [EngineFigures(one, waiting, slack_s) for one in running]


@pytest.mark.parametrize(
    ("given_engines", "first_audio_s", "wanted"),
    [
        ([], None, 1),
        (engines(0), None, 1),
        (engines(9), None, 1),
        (engines(9), 0.1, 1),
        (engines(9), 0.3, 2),  # too late
        (engines(9, slack_s=0.2), None, 2),
        (engines(9, waiting=1.0), None, 2),
        (engines(11), None, 2),
        (engines(50), None, 2),  # at most twice as many at a time
        (engines(10, 10, 30), None, 5),
        (engines(3, 3), None, 1),
        (engines(4, 4), None, 2),  # one alone would have eight of ten
        (engines(2, 2, waiting=1.0), None, 3),
        (engines(1, 1, 1) + engines(1, slack_s=0.1), None, 4),  # one of four is behind
    ],
)
def test_engines_are_wanted(given_engines, first_audio_s, wanted):
    assert wanted_engines(given_engines, RULES, first_audio_s) == wanted


FIGURES = st.builds(
    EngineFigures,
    running=st.floats(0, 100),
    waiting=st.sampled_from([0.0, 0.0, 0.0, 1.0, 40.0]),
    least_slack_s=st.floats(0, 60),
)


@given(st.lists(FIGURES, max_size=9), st.one_of(st.none(), st.floats(0, 10)))
def test_there_is_always_one_and_never_more_than_twice_as_many(figures, first_audio_s):
    wanted = wanted_engines(figures, RULES, first_audio_s)
    assert 1 <= wanted <= max(1, 2 * len(figures))
    assert wanted >= len(figures) - 1


@given(st.lists(st.floats(0, 10), min_size=2, max_size=9))
def test_what_a_smaller_number_has_does_not_ask_for_more_at_once(running):
    """An engine that is given up is not started again by the same requests."""
    before = engines(*running)
    if wanted_engines(before, RULES) < len(before):
        after = engines(*[sum(running) / (len(before) - 1)] * (len(before) - 1))
        assert wanted_engines(after, RULES) <= len(after)


def test_figures_are_those_of_all_models_and_an_idle_engine_has_slack_enough():
    load = {
        "tts": {"running": 3.0, "waiting": 1.0, "least_slack_seconds": 0.25},
        "asr": {"running": 2.0, "waiting": 0.0, "least_slack_seconds": inf},
    }
    assert figures_of(load) == EngineFigures(5.0, 1.0, 0.25)
    assert figures_of({}) == EngineFigures(0.0, 0.0, 60.0)
    assert figures_of({"asr": load["asr"]}).least_slack_s == 60.0


def test_rules_are_checked():
    for wrong in ({"streams_each": 0}, {"least_slack_s": -1.0}, {"first_audio_s": -1.0}):
        with pytest.raises(InvalidRequest, match=next(iter(wrong))):
            ScalingRules(**wrong)
