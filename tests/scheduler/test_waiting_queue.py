"""The waiting requests that a policy sees."""

from __future__ import annotations

import pytest

from benchmarks.simulation.device import SimulatedPrompt
from izwi.request.request import Request
from izwi.request.sequence import Sequence
from izwi.scheduler.plan import Order
from izwi.scheduler.scheduler import PromptsInFlight, Starts, WaitingQueue


def room(order: Order, priorities: list[int], streams: bool = True) -> WaitingQueue:
    waiting = WaitingQueue(order)
    for arrival, priority in enumerate(priorities):
        prompt = SimulatedPrompt(4, 0, arrival)
        request = Request(f"{arrival}", "m", prompt, priority=priority, streams=streams)
        sequence = Sequence(request, arrival)
        sequence.status.last_step = 100 - arrival
        waiting.add(sequence)
    return waiting


def arrivals(waiting: WaitingQueue, count: int, *, stuck: int = 0) -> list[int]:
    """Arrivals of the heads; the first `stuck` cannot run, and the last is late first."""
    heads = waiting.heads(count, lambda s: s.arrival >= stuck, lambda s: -s.arrival)
    return [sequence.arrival for sequence in heads]


def test_each_order_shows_its_own_first() -> None:
    priorities = [0, 2, 0, 2, 1, 0, 0, 0, 0]
    assert arrivals(room(Order.ARRIVAL, priorities), 2) == [0, 1]
    assert arrivals(room(Order.SLACK, priorities), 2) == [8, 7]
    assert arrivals(room(Order.SLACK, priorities, streams=False), 2) == [0, 1]
    shown = arrivals(room(Order.PRIORITY, priorities), 2)
    assert shown[:2] == [1, 3]
    assert set(shown[2:]) == {8, 7, 6, 5}, "those that have been idle longest"


def test_waiting_requests_that_cannot_run_take_no_place() -> None:
    for order in Order:
        assert set(arrivals(room(order, [0] * 40), 2, stuck=30)) >= (
            {39, 38} if order is Order.SLACK else {30, 31}
        )
        assert arrivals(room(order, [0] * 8), 8, stuck=6) == [6, 7]


def test_removed_sequences_are_not_candidates() -> None:
    waiting = room(Order.PRIORITY, [0, 1, 0])
    for sequence in list(waiting)[:2]:
        waiting.remove(sequence)
        waiting.remove(sequence)
    assert arrivals(waiting, 3) == [2]


def a_prompt(arrival: int, chain: tuple[int, ...]) -> Sequence:
    sequence = Sequence(Request(f"{arrival}", "m", SimulatedPrompt(4, 0, arrival)), arrival)
    sequence.kv.page_chain = chain
    return sequence


def test_a_page_is_in_flight_until_every_request_has_computed_it() -> None:
    pages = PromptsInFlight()
    one, other = a_prompt(0, (1, 2, 3)), a_prompt(1, (1, 2, 9))
    pages.start(one, 0)
    pages.start(other, 1)  # it has the first page from elsewhere
    assert [page for page in range(10) if page in pages] == [1, 2, 3, 9]
    pages.reached(other, 0)  # a prompt whose later pages alone are new has reached none of them
    assert [page for page in range(10) if page in pages] == [1, 2, 3, 9]
    pages.reached(one, 2)
    assert [page for page in range(10) if page in pages] == [2, 3, 9]
    pages.stop(other)
    assert [page for page in range(10) if page in pages] == [3]
    pages.reached(one, 3)
    pages.reached(one, 3)
    pages.stop(one)
    assert [page for page in range(10) if page in pages] == []


def test_how_often_requests_start() -> None:
    starts = Starts()
    assert (starts.steps_since, starts.per_step, starts.far_per_step) == (0, 0.0, 0.0)
    starts.step(0)
    starts.step(0)
    assert (starts.steps_since, starts.per_step) == (2, 0.0)
    starts.step(2)
    assert starts.steps_since == 0
    assert 0.0 < starts.per_step < 2.0
    assert starts.far_per_step == 0.0
    for _ in range(2000):
        starts.step(2, 1)
    assert starts.per_step == pytest.approx(2.0)
    assert starts.far_per_step == pytest.approx(1.0)
