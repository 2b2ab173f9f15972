"""Choose the engine that runs a request. Pure: no clocks, no transport, no randomness of its own.

A policy is a function from the engines that accept requests, and what is known of the request, to
one of these engines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# So many cached positions are worth one request more in flight than the least loaded engine has: a
# batch of a few more rows costs little, and a popular short prefix must not fill one engine.
_POSITIONS_PER_REQUEST = 64
# However long a prefix, its engine may have so many more than twice those of the least loaded one.
_MOST_AHEAD = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine that accepts requests.

    Attributes:
        replica: Its number.
        num_in_flight: Requests that it runs or has queued.
        work: Their predicted work; see `izwi.router.work`.
        num_cached: Leading positions of the request's prompt that it has computed before.
        has_room: It runs all of its requests, so that none waits.
    """

    replica: int
    num_in_flight: int = 0
    work: float = 0.0
    num_cached: int = 0
    has_room: bool = True


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request, or several that start together, as policies see them.

    Attributes:
        number: Placements before it.
        draw: A random number, at least 0 and less than 1.
    """

    number: int = 0
    draw: float = 0.0


# Returns one of the candidates. There is at least one, in ascending order of `replica`.
RouterPolicy = Callable[[Sequence[Candidate], Arrival], Candidate]


def choose_least_load(candidates: Sequence[Candidate], arrival: Arrival) -> Candidate:
    """Return the engine with the least predicted work; of equals, the one with fewest requests."""
    del arrival
    return min(candidates, key=lambda one: (one.work, one.num_in_flight, one.replica))


def choose_prefix(candidates: Sequence[Candidate], arrival: Arrival) -> Candidate:
    """Return the engine with the longest cached prefix; of equals, the one with the least work.

    An engine is passed over if it is further ahead of the least loaded one, in requests, than the
    prefix is worth.
    """
    least = min(one.num_in_flight for one in candidates)
    balanced = [
        one
        for one in candidates
        if one.num_in_flight - least
        <= min(one.num_cached // _POSITIONS_PER_REQUEST, least + _MOST_AHEAD)
    ]
    longest = max(one.num_cached for one in balanced)
    return choose_least_load([one for one in balanced if one.num_cached == longest], arrival)


def choose_round_robin(candidates: Sequence[Candidate], arrival: Arrival) -> Candidate:
    """Return one engine after the other."""
    return candidates[arrival.number % len(candidates)]


def choose_random(candidates: Sequence[Candidate], arrival: Arrival) -> Candidate:
    """Return any engine, each with the same probability."""
    return candidates[int(arrival.draw * len(candidates))]


def choose_fcfs(candidates: Sequence[Candidate], arrival: Arrival) -> Candidate:
    """Return the first engine on which the request need not wait; without one, as least load.

    Requests are placed in order of arrival, and the last engines stay idle under little load.
    """
    for one in candidates:
        if one.has_room:
            return one
    return choose_least_load(candidates, arrival)


ROUTER_POLICIES: dict[str, RouterPolicy] = {
    "prefix": choose_prefix,
    "least_load": choose_least_load,
    "round_robin": choose_round_robin,
    "random": choose_random,
    "fcfs": choose_fcfs,
}
