"""Waits are predicted from measured ones, and limit which engines get a request."""

from __future__ import annotations

import sys
from math import inf

import pytest
from msgspec.structs import replace

from izwi.errors import Overloaded
from izwi.router.first_outputs import FirstOutputs
from izwi.router.options import RouterOptions
from izwi.router.placement import Placement, ReplicaLoad
from tests.engine.toy import toy_request


def measured(*pairs, at_s=0.0):
    """Waits in seconds beside works, that all end at one time."""
    known = FirstOutputs()
    for number, (work, first_s) in enumerate(pairs):
        known.place(f"{number}", work, at_s - first_s)
        known.come(f"{number}", at_s)
    return known


def test_nothing_is_predicted_from_too_little():
    assert measured().predict_s(1.0, 0.0) == 0.0
    assert measured((1.0, 0.1), (1.0, 5.0)).predict_s(1.0, 0.0) == 5.0  # the slowest of few
    assert measured(*[(2.0, 5.0)] * 8).predict_s(0.9, 0.0) == 0.0  # only far more was measured


def test_a_load_that_was_never_measured_is_not_predicted_while_another_request_waits():
    known = measured((1.0, 0.02))
    assert known.predict_s(3.0, 0.0) == 0.02
    known.place("a", 3.0, 0.0)
    assert known.predict_s(2.0, 0.0) == 0.02
    assert known.predict_s(3.0, 0.0) == inf
    known.come("a", 0.03)
    known.place("b", 6.0, 0.03)
    assert known.predict_s(6.0, 0.03) == 0.03
    assert known.predict_s(6.1, 0.03) == inf


def test_an_engine_that_knows_too_little_is_taken_for_its_neighbours():
    neighbour = measured(*[(1.0, 0.02)] * 4, *[(4.0, 0.08)] * 4)
    known = measured((1.0, 0.02))
    known.place("a", 1.0, 0.0)
    assert known.predict_s(4.0, 0.0) == inf
    assert known.predict_s(4.0, 0.0, [neighbour]) == pytest.approx(0.08)
    known = measured(*[(1.0, 0.5)] * 8)
    assert known.predict_s(1.0, 0.0, [neighbour]) == pytest.approx(0.5)  # it knows better


def test_more_work_waits_longer_by_a_line_that_leaves_out_far_more_work():
    known = measured(*[(1.0, 0.02)] * 32, *[(4.0, 0.08)] * 32)
    assert known.predict_s(1.0, 0.0) == pytest.approx(0.02)
    assert known.predict_s(2.5, 0.0) == pytest.approx(0.05)
    assert known.predict_s(6.0, 0.0) == pytest.approx(0.12)
    known = measured(*[(1.0, 0.02)] * 32, *[(4.0, 9.0)] * 32)
    assert known.predict_s(1.9, 0.0) == pytest.approx(0.02)


def test_times_that_fall_with_the_work_do_not_promise_shorter_ones():
    known = measured(*[(1.0, 0.08)] * 20, *[(4.0, 0.02)] * 20)
    assert known.predict_s(8.0, 0.0) == pytest.approx(0.08)


def test_one_of_twenty_may_be_late():
    known = measured(*[(1.0, 0.02)] * 31, (1.0, 9.0))
    assert known.predict_s(1.0, 0.0) == pytest.approx(0.02)
    known = measured(*[(1.0, 0.02)] * 30, *[(1.0, 9.0)] * 2)
    assert known.predict_s(1.0, 0.0) == pytest.approx(9.0)


def test_a_slow_time_is_forgotten():
    known = measured(*[(1.0, 5.0)] * 20)
    assert known.predict_s(1.0, 30.0) == 5.0
    assert known.predict_s(1.0, 30.1) == 0.0
    for number in range(300):
        known.place(f"new-{number}", 1.0, 31.0)
        known.come(f"new-{number}", 31.01)
    assert known.predict_s(1.0, 31.01) == pytest.approx(0.01)


def test_it_is_at_least_what_the_first_one_has_waited_already():
    known = measured(*[(1.0, 0.02)] * 20)
    known.place("stuck", 1.0, 1.0)
    known.place("later", 1.0, 2.0)
    assert known.predict_s(1.0, 4.0) == 3.0
    known.drop("stuck")
    assert known.predict_s(1.0, 4.0) == 2.0
    known.come("later", 4.0)
    known.come("later", 9.0)  # its second output says nothing
    assert known.predict_s(0.5, 9.0) == pytest.approx(0.02)


# -- placement -----------------------------------------------------------------------------------
class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def busy(num_replicas=1, max_wait_s=0.1):
    """Engines with one request each that has waited 3.2 s, and the clock.

    Each had two before at the same time, whose first outputs came at once.
    """
    clock = Clock()
    loads = [ReplicaLoad(number, accepts=True) for number in range(num_replicas)]
    made = Placement(RouterOptions("least_load", max_wait_s=max_wait_s), loads, clock=clock)
    for number in range(num_replicas):
        before = [toy_request(f"{name}-{number}", 2, 1, 40) for name in "ab"]
        works = [made.place_request(number, one) for one in before]
        for one, work in zip(before, works, strict=True):
            made.end_wait(number, one, has_output=True)
            made.end(number, work)
        made.place_request(number, toy_request(f"first-{number}", 2, 1, 40))
    clock.now_s = 3.2
    return made, clock


def test_a_request_is_refused_for_as_long_as_the_wait_exceeds_its_limit():
    made, _ = busy()
    with pytest.raises(Overloaded, match=r"3200 ms, and the limit is 100 ms") as refused:
        made.choose([toy_request("next", 2, 1, 40)])
    assert refused.value.retry_after_s == 4
    made.end_wait(0, toy_request("first-0", 2, 1, 40), has_output=False)
    assert made.choose([toy_request("next", 2, 1, 40)]) == 0


def test_more_than_was_measured_is_refused_until_it_is():
    made, _ = busy()
    made.loads[0].first_outputs.clear()
    first = toy_request("alone", 2, 1, 40)
    made.place_request(0, first)
    with pytest.raises(Overloaded, match="is not known yet, and the limit is 100 ms") as refused:
        made.choose([toy_request("next", 2, 1, 40)])
    assert refused.value.retry_after_s == 1
    made.end_wait(0, first, has_output=True)
    assert made.choose([toy_request("next", 2, 1, 40)]) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"continues": True},
        {"streams": False},
        {"priority": -1},
        {"open_input": True},
        {"awaits_engine": True},
    ],
)
def test_what_nobody_waits_for_is_not_refused(fields):
    made, _ = busy()
    assert made.choose([replace(toy_request("next", 2, 1, 40), **fields)]) == 0


def test_the_engine_with_the_shorter_wait_gets_it():
    made, _ = busy(2)
    made.end_wait(1, toy_request("first-1", 2, 1, 40), has_output=False)
    made.place_request(1, toy_request("more", 2, 1, 40))  # more work, but no wait
    assert made.choose([toy_request("next", 2, 1, 40)]) == 1


def test_an_engine_without_requests_gets_one_whatever_its_last_ones_took():
    made, _ = busy(max_wait_s=0.001)
    first = toy_request("first-0", 2, 1, 40)
    work = made.loads[0].work
    made.end_wait(0, first, has_output=True)
    made.end(0, work)
    for number in range(8):
        one = toy_request(f"n{number}", 2, 1, 40)
        assert made.choose([one]) == 0
        work = made.place_request(0, one)
        made._clock.now_s += 1.0
        made.end_wait(0, one, has_output=True)
        made.end(0, work)
    made.place_request(0, toy_request("runs", 2, 1, 40))
    with pytest.raises(Overloaded):
        made.choose([toy_request("next", 2, 1, 40)])


def test_a_stream_is_refused_before_it_is_prepared_as_it_would_be_after():
    made, _ = busy(2)
    made.check_admission("another model")  # nothing waits for it
    with pytest.raises(Overloaded) as early:
        made.check_admission("toy")
    with pytest.raises(Overloaded) as late:
        made.choose([toy_request("next", 2, 1, 40)])
    assert (str(early.value), early.value.retry_after_s) == (
        str(late.value),
        late.value.retry_after_s,
    )
    made.end_wait(1, toy_request("first-1", 2, 1, 40), has_output=False)
    made.check_admission("toy")
    for load in made.loads:
        load.accepts = False
    made.check_admission("toy")  # that no engine accepts it is not said here


def test_limits_of_requests_in_flight_are_checked_before_it_is_prepared_too():
    made = Placement(
        RouterOptions("least_load", max_wait_s=9.0, max_in_flight=1),
        [ReplicaLoad(0, accepts=True, models=frozenset({"toy"}))],
    )
    made.check_admission("toy")
    made.place_request(0, toy_request("a", 2, 1, 40))
    with pytest.raises(Overloaded, match="--max-in-flight"):
        made.check_admission("toy")


def test_the_delay_of_the_process_itself_counts_also_beside_an_idle_engine():
    made, _ = busy(2)
    for number in range(2):
        made.end_wait(number, toy_request(f"first-{number}", 2, 1, 40), has_output=True)
        made.loads[number].first_outputs.clear()
        made.end(number, made.loads[number].work)
    made.own_delay_s = lambda: 0.08
    made.check_admission("toy")
    made.own_delay_s = lambda: 2.6
    with pytest.raises(
        Overloaded, match=r"2600 ms \(2600 ms of it in this API server\)"
    ) as refused:
        made.check_admission("toy")
    assert refused.value.retry_after_s == 3


def num_calls(action):
    """Calls of Python functions and of built-in ones that an action makes."""
    count = 0

    def profile(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def test_refusals_in_a_row_cost_little_however_much_was_measured():
    made, clock = busy()
    known = made.loads[0].first_outputs["toy"]
    for number in range(256):
        known.place(f"slow-{number}", 600.0 + number, 0.0)
        known.come(f"slow-{number}", 3.2)

    def refuse():
        with pytest.raises(Overloaded):
            made.check_admission("toy")

    first, later = num_calls(refuse), num_calls(refuse)
    assert later < 100 < first
    clock.now_s += 0.5
    assert num_calls(refuse) < 100
    assert known.predict_s(512.0, 3.7) >= 3.2
    known.come("first-0", 3.8)  # what is learned meanwhile counts
    assert num_calls(refuse) > 100


def test_what_is_predicted_again_is_what_would_be_computed():
    known = measured(*[(1.0 + n % 5, 0.01 * (n % 7)) for n in range(64)], at_s=1.0)
    known.place("slow", 2.0, 0.0)
    before = [known.predict_s(work, 1.0) for work in (2.0, 2.0, 3.0, 2.0)]
    known._known = None
    assert before[0] == before[1] == before[3] == known.predict_s(2.0, 1.0)
    known.come("slow", 9.0)
    after = known.predict_s(2.0, 9.0)
    known._known = None
    assert after == known.predict_s(2.0, 9.0)
    assert known.predict_s(2.0, 31.5) == 9.0  # only the last one is remembered


def test_without_a_limit_nothing_is_kept():
    made, _ = busy(max_wait_s=0.0)
    assert made.choose([toy_request("next", 2, 1, 40)]) == 0
    assert made.loads[0].first_outputs == {}
