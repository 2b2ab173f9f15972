"""A model that keeps failing on one engine gets no requests there until a probe succeeds."""

from __future__ import annotations

import pytest

from izwi.router.breaker import FIRST_REST_S, LONGEST_REST_S, MOST_FAILURES, CircuitBreaker
from izwi.router.options import RouterOptions
from izwi.router.placement import Placement, ReplicaLoad
from tests.router.test_placement import asked


def opened(now_s: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker()
    assert [breaker.fail(now_s) for _ in range(MOST_FAILURES)] == [False] * 4 + [True]
    return breaker


def test_it_opens_after_failures_in_a_row_and_lets_one_probe_pass_after_a_rest():
    breaker = opened(100.0)
    assert breaker.state(100.0) == "open"
    assert not breaker.allows(100.0 + FIRST_REST_S - 0.1)
    half_open_s = 100.0 + FIRST_REST_S
    assert breaker.state(half_open_s) == "half_open"
    assert breaker.allows(half_open_s)
    breaker.start(half_open_s)
    assert not breaker.allows(half_open_s), "one probe at a time"
    breaker.skip()  # its reader left
    assert breaker.allows(half_open_s)


def test_each_failed_probe_doubles_the_rest_up_to_a_limit():
    breaker, now_s, rests = opened(), FIRST_REST_S, []
    for _ in range(6):
        breaker.start(now_s)
        assert breaker.fail(now_s)
        assert not breaker.fail(now_s), "an old request does not make it longer"
        rest_s = next(s for s in range(1, 100) if breaker.allows(now_s + s))
        rests.append(rest_s)
        now_s += rest_s
    assert rests == [10, 20, 40, LONGEST_REST_S, LONGEST_REST_S, LONGEST_REST_S]


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def made():
    loads = [ReplicaLoad(number, accepts=True) for number in range(2)]
    clock = Clock()
    placement = Placement(RouterOptions("least_load"), loads, clock=clock)
    placement.clock = clock
    return placement


def fail(made, times, replica=0):
    return [made.note_outcome(replica, "toy", works=False) for _ in range(times)]


def test_requests_of_a_model_that_fails_go_elsewhere_and_those_of_others_do_not(made):
    assert made.choose([asked("a")]) == 0
    fail(made, MOST_FAILURES)
    assert made.choose([asked("a")]) == 1
    assert made.choose([asked("a", model="other")]) == 0
    assert (made.open_circuits(0), made.open_circuits(1)) == ({"toy": "open"}, {})
    made.clock.now_s = FIRST_REST_S
    assert made.open_circuits(0) == {"toy": "half_open"}
    assert made.choose([asked("probe")]) == 0
    made.place_request(0, asked("probe"))
    assert made.choose([asked("b")]) == 1
    made.note_outcome(0, "toy", works=True)
    made.end(0, 0.0)
    assert made.choose([asked("b")]) == 0
    assert made.open_circuits(0) == {}


def test_a_success_in_between_and_ends_that_say_nothing_keep_it_closed(made):
    for works in (True, None):
        fail(made, MOST_FAILURES - 1)
        made.note_outcome(0, "toy", works=works)
        assert made.choose([asked("a")]) == 0
        if works:
            assert fail(made, MOST_FAILURES - 1) == [False] * (MOST_FAILURES - 1)
            made.note_outcome(0, "toy", works=True)


def test_a_model_that_fails_everywhere_is_still_tried(made):
    for replica in (0, 1):
        fail(made, MOST_FAILURES, replica)
    assert made.choose([asked("a")]) == 0


def test_what_one_process_sees_of_an_engine_all_know(made):
    loads = [ReplicaLoad(number, accepts=True) for number in range(2)]
    other = Placement(RouterOptions("least_load"), loads, clock=made.clock)
    made.when_circuit_changes = other.change_circuit
    other.when_circuit_changes = made.change_circuit
    for number in range(MOST_FAILURES):  # in turn
        (made, other)[number % 2].note_outcome(0, "toy", works=False)
    assert made.open_circuits(0) == other.open_circuits(0) == {"toy": "open"}
    made.clock.now_s = FIRST_REST_S
    other.place_request(0, asked("probe"))
    assert made.choose([asked("a")]) == other.choose([asked("a")]) == 1, "one probe in all"
    other.note_outcome(0, "toy", works=None)
    assert made.choose([asked("a")]) == 0
    made.place_request(0, asked("probe"))
    made.note_outcome(0, "toy", works=True)
    assert made.open_circuits(0) == other.open_circuits(0) == {}
    other.note_outcome(1, "toy", works=False)
    made.note_outcome(1, "toy", works=True)
    assert not other.loads[1].circuits, "failures in a row, of all"


def test_a_new_engine_starts_closed(made):
    fail(made, MOST_FAILURES)
    made.loads[0].clear()
    made.loads[0].accepts = True
    assert made.choose([asked("a")]) == 0
