"""Place requests on engines, by a policy and what is known of each engine. Knows no transport."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, isinf

from izwi.errors import Overloaded
from izwi.request.request import Request
from izwi.router.breaker import (
    CircuitBreaker,
    CircuitEvent,
    CircuitState,
    change_circuit,
    open_circuits,
)
from izwi.router.first_outputs import FirstOutputs
from izwi.router.options import RouterOptions
from izwi.router.policy import ROUTER_POLICIES, Arrival, Candidate, choose_prefix
from izwi.router.prefixes import KnownPrefixes, prompt_chain
from izwi.router.work import WorkPredictor

# Positions that a piece of audio counts for which an engine has encoded before.
_ENCODED_POSITIONS = 64
# Delays of this process that are named in a refusal, in seconds.
_SHOWN_S = 1e-3
# Listeners whose engine is remembered.
_MOST_LISTENERS = 4096


@dataclass(slots=True)
class ReplicaLoad:
    """What is known of one engine.

    Attributes:
        replica: Its number.
        accepts: It may get requests.
        models: Those that it serves, or None as long as that is not known.
        num_in_flight: Requests that this process has sent to it and that have not ended.
        work: Their predicted work.
        figures: What it has published of each model; see `izwi.metrics.FIGURES`.
        prefixes: Prefixes that it has.
        circuits: Of the models that have failed there, by name.
        first_outputs: Of the models that it has run, by name, if waits are limited.
    """

    replica: int
    accepts: bool = False
    models: frozenset[str] | None = None
    num_in_flight: int = 0
    work: float = 0.0
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    prefixes: KnownPrefixes = field(default_factory=KnownPrefixes)
    circuits: dict[str, CircuitBreaker] = field(default_factory=dict)
    first_outputs: dict[str, FirstOutputs] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget what was learned of an engine that is gone."""
        self.accepts = False
        self.prefixes.clear()
        self.circuits.clear()
        self.first_outputs.clear()

    def allows(self, model: str, now_s: float) -> bool:
        """Whether a model works there, as far as known."""
        circuit = self.circuits.get(model)
        return circuit is None or circuit.allows(now_s)

    def serves(self, requests: Sequence[Request]) -> bool:
        """Whether it serves the models of requests, as far as known."""
        return self.models is None or all(one.model in self.models for one in requests)

    @property
    def num_elsewhere(self) -> int:
        """Requests that other processes have sent to it, as of its latest figures."""
        levels = ("running", "waiting", "paused")
        total = sum(figures.get(one, 0.0) for figures in self.figures.values() for one in levels)
        return max(0, int(total) - self.num_in_flight)

    @property
    def has_waiting(self) -> bool:
        """Whether requests wait on it, as of its latest figures."""
        return any(figures.get("waiting", 0.0) > 0 for figures in self.figures.values())


class Placement:
    """Chooses an engine for each request, and keeps count of what each engine runs.

    Requests of one listener go to one engine, because its playback clock is there. The others are
    placed by the policy. Engines on which the model keeps failing are left out, unless it fails on
    all of them.

    Args:
        options: The policy and the limits.
        loads: What is known of the engines, by their numbers.
        seed: Of the policy `random`.
        clock: Seconds, monotonic.

    Attributes:
        when_circuit_changes: Called with an engine, a model and what has happened to its circuit
            there, for other processes.
        own_delay_s: Returns the seconds that this process itself adds to the wait for a first
            output at present, before a request is placed and after its output has come.
    """

    def __init__(
        self,
        options: RouterOptions,
        loads: Sequence[ReplicaLoad],
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._options, self.loads, self._clock = options, loads, clock
        self._policy = ROUTER_POLICIES[options.policy]
        self._predictor = WorkPredictor()
        self._random = random.Random(seed)
        self._number = 0
        self._chained: tuple[str, list[int]] = "", []  # of the request that was looked up last
        self._listeners: dict[str, int] = {}
        self.when_circuit_changes: Callable[[int, str, CircuitEvent], object] = _ignore
        self.own_delay_s: Callable[[], float] = float

    def takes(
        self, requests: Sequence[Request], without: frozenset[int] = frozenset()
    ) -> list[ReplicaLoad]:
        """Return the engines that accept requests and serve the models of these."""
        return [
            one
            for one in self.loads
            if one.accepts and one.replica not in without and one.serves(requests)
        ]

    def check_admission(self, model: str) -> None:
        """Refuse a new stream of a model before it is prepared, if `choose` would.

        Nothing is known of it but its model, so a limit of requests in flight counts it as one.
        Without an engine for the model nothing is refused here.

        Raises:
            Overloaded: As `choose`.
        """
        if self._options.max_wait_s > 0:
            accepting = [
                one
                for one in self.loads
                if one.accepts and (one.models is None or model in one.models)
            ]
            self._within_wait(self._below_limits(self._decoding(accepting), 1), model)

    def choose(self, requests: Sequence[Request], without: frozenset[int] = frozenset()) -> int:
        """Return the engine for requests that start together.

        Args:
            requests: At least one; `takes` returns at least one engine for them.
            without: Engines that must not get them.

        Raises:
            Overloaded: The limits of requests in flight are reached, or on every engine the
                predicted wait is longer than its limit.
        """
        accepting = self._decoding(self.takes(requests, without))
        continues = all(request.continues for request in requests)
        if not continues:
            accepting = self._below_limits(accepting, len(requests))
            if self._is_waited_for(requests[0]):
                accepting = self._within_wait(accepting, requests[0].model)
        model, now_s = requests[0].model, self._clock()
        accepting = [one for one in accepting if one.allows(model, now_s)] or accepting
        replica = self._listeners.get(requests[0].listener) if requests[0].listener else None
        if replica is not None and any(one.replica == replica for one in accepting):
            return replica
        if len(accepting) == 1:
            return accepting[0].replica
        arrival = Arrival(self._number, self._random.random())
        return self._policy(self._candidates(accepting, requests[0]), arrival).replica

    def choose_prefill(self, requests: Sequence[Request], chosen: int) -> int | None:
        """Return the engine that computes the prompt of the first request for a chosen engine.

        None: the chosen engine computes it, because it is short or cached there, or no other one
        may.
        """
        num_prefill, first = self._options.num_prefill, requests[0]
        if chosen < num_prefill or not num_prefill or not _can_part(first):
            return None
        num_cached = self._num_cached(self.loads[chosen], first, self._chain(first))
        if first.prompt.num_positions - num_cached < self._options.prefill_positions:
            return None
        now_s = self._clock()
        able = [
            one
            for one in self.takes(requests)
            if one.replica < num_prefill and one.allows(first.model, now_s)
        ]
        if not able:
            return None
        arrival = Arrival(self._number, self._random.random())
        return choose_prefix(self._candidates(able, first), arrival).replica

    def place_request(self, replica: int, request: Request) -> float:
        """Count a request that was sent to an engine; return its predicted work."""
        load, work = self.loads[replica], self._predictor.predict(request)
        if self._is_waited_for(request):
            first_outputs = load.first_outputs.setdefault(request.model, FirstOutputs())
            beside = self._work(load, self._predictor.mean(request.model))
            first_outputs.place(request.request_id, beside, self._clock())
        self._predictor.note(request.model, work)
        load.num_in_flight += 1
        load.work += work
        self._number += 1
        circuit = load.circuits.get(request.model)
        if circuit is not None and circuit.state(self._clock()) is CircuitState.HALF_OPEN:
            self._change_circuit(replica, request.model, CircuitEvent.PROBED)
        if request.listener:
            self._listeners.pop(request.listener, None)
            self._listeners[request.listener] = replica
            if len(self._listeners) > _MOST_LISTENERS:
                del self._listeners[next(iter(self._listeners))]
        if self._looks_up and request.cacheable and len(self.takes([request])) > 1:
            pieces = [piece.digest for piece in request.prompt.encode_inputs]
            load.prefixes.place(request.model, [*self._chain(request), *pieces])
        return work

    def end_wait(self, replica: int, request: Request, *, has_output: bool) -> None:
        """Note that a request has its first output, or waits no more; the first call counts."""
        if (known := self.loads[replica].first_outputs.get(request.model)) is None:
            return
        if has_output:
            known.come(request.request_id, self._clock())
        else:
            known.drop(request.request_id)

    def end(self, replica: int, work: float) -> None:
        """Count a request that has left an engine; `work` is what `place_request` returned."""
        load = self.loads[replica]
        load.num_in_flight -= 1
        load.work = load.work - work if load.num_in_flight else 0.0

    def note_outcome(self, replica: int, model: str, *, works: bool | None) -> bool:
        """Note how a request has ended on an engine; return whether that has opened a circuit.

        Args:
            replica: The engine.
            model: The request's model.
            works: False: the engine failed to run it; None: the end says nothing of the engine.
        """
        if works is False:
            return self._change_circuit(replica, model, CircuitEvent.FAILED)
        if model in self.loads[replica].circuits:
            event = CircuitEvent.WORKS if works else CircuitEvent.SKIPPED
            self._change_circuit(replica, model, event)
        return False

    def change_circuit(self, replica: int, model: str, event: CircuitEvent) -> bool:
        """Change a circuit as another process has; return whether that has opened it."""
        return change_circuit(self.loads[replica].circuits, model, event, self._clock())

    def _change_circuit(self, replica: int, model: str, event: CircuitEvent) -> bool:
        self.when_circuit_changes(replica, model, event)
        return self.change_circuit(replica, model, event)

    def open_circuits(self, replica: int) -> dict[str, str]:
        """Return the state of each circuit of an engine that is not closed, by model."""
        return open_circuits(self.loads[replica].circuits, self._clock())

    def learn(self, model: str, num_entries: int) -> None:
        """Learn from the length of an answer that has ended by itself."""
        self._predictor.learn(model, num_entries)

    @property
    def _looks_up(self) -> bool:
        """Whether prefixes matter: several engines, and a placement that reads them."""
        reads = self._options.policy == "prefix" or self._options.num_prefill > 0
        return len(self.loads) > 1 and reads

    def _chain(self, request: Request) -> list[int]:
        if self._chained[0] != request.request_id:
            self._chained = request.request_id, prompt_chain(request, self._options.page_size)
        return self._chained[1]

    def _below_limits(self, accepting: list[ReplicaLoad], count: int) -> list[ReplicaLoad]:
        most, most_each = self._options.max_in_flight, self._options.max_in_flight_each
        if not _has_room(sum(map(_num_in_flight, self.loads)), count, most):
            raise Overloaded(f"{most} requests are in flight (--max-in-flight); retry later")
        below = [one for one in accepting if _has_room(_num_in_flight(one), count, most_each)]
        if accepting and not below:
            raise Overloaded(
                f"every replica has {most_each} requests in flight (--max-in-flight-each); "
                "retry later"
            )
        return below

    def _decoding(self, accepting: list[ReplicaLoad]) -> list[ReplicaLoad]:
        """Return the engines that do more than compute prompts; all, if there are no others."""
        decoding = [one for one in accepting if one.replica >= self._options.num_prefill]
        return decoding or accepting

    def _within_wait(self, accepting: list[ReplicaLoad], model: str) -> list[ReplicaLoad]:
        """Return the engines on which a request is predicted to have its first output in time.

        An engine without requests is one of them, so that there is always something to learn from,
        unless this process itself is too slow.
        """
        most_s, own_s = self._options.max_wait_s, self.own_delay_s()
        waits_s = [own_s + self._wait_s(load, model) for load in accepting]
        found = [one for one, wait_s in zip(accepting, waits_s, strict=True) if wait_s <= most_s]
        if accepting and not found:
            least_s = min(waits_s)
            limit = f"the limit is {most_s * 1e3:g} ms (--max-wait-ms); retry later"
            if isinf(least_s):
                message = "how long the first output takes beside so much work is not known yet"
                raise Overloaded(f"{message}, and {limit}", retry_after_s=1)
            here = f" ({own_s * 1e3:.0f} ms of it in this API server)" if own_s >= _SHOWN_S else ""
            raise Overloaded(
                f"the first output would take {least_s * 1e3:.0f} ms{here}, and {limit}",
                retry_after_s=max(1, ceil(least_s - most_s)),
            )
        return found

    def _is_waited_for(self, request: Request) -> bool:
        """Whether the time until a request's first output is limited, and says how busy it is.

        What is not played while it is made is scheduled behind what is, text that is still to be
        written comes at any time, and in a live session nobody can be asked to try again.
        """
        return (
            self._options.max_wait_s > 0
            and request.streams
            and not (request.continues or request.is_idle_work)
            and not (request.open_input or request.awaits_engine)
        )

    def _wait_s(self, load: ReplicaLoad, model: str) -> float:
        if not _num_in_flight(load) or (known := load.first_outputs.get(model)) is None:
            return 0.0
        others = [one.first_outputs.get(model) for one in self.loads if one is not load]
        alike = [one for one in others if one is not None]
        work = self._work(load, self._predictor.mean(model))
        return known.predict_s(work, self._clock(), alike)

    def _work(self, load: ReplicaLoad, mean: float) -> float:
        """Return the work that an engine has, if requests of other processes have the mean."""
        return load.work + mean * load.num_elsewhere

    def _candidates(self, loads: Sequence[ReplicaLoad], request: Request) -> list[Candidate]:
        chain = self._chain(request) if self._looks_up else []
        mean = self._predictor.predict(request)
        return [
            Candidate(
                load.replica,
                _num_in_flight(load),
                self._work(load, mean),
                self._num_cached(load, request, chain),
                not load.has_waiting,
            )
            for load in loads
        ]

    def _num_cached(self, load: ReplicaLoad, request: Request, chain: Sequence[int]) -> int:
        if not self._looks_up:
            return 0
        model, prefixes = request.model, load.prefixes
        num_pieces = sum(prefixes.has(model, p.digest) for p in request.prompt.encode_inputs)
        num_pages = prefixes.num_known(model, chain)
        return num_pages * self._options.page_size + num_pieces * _ENCODED_POSITIONS


def _ignore(replica: int, model: str, event: CircuitEvent) -> None:
    del replica, model, event


def _can_part(request: Request) -> bool:
    """Whether another engine may compute the prompt: it is all there, and pages are all of it."""
    whole = not (request.encode_only or request.output_positions or request.open_input)
    return whole and request.cacheable and not request.continues


def _num_in_flight(load: ReplicaLoad) -> int:
    return load.num_in_flight + load.num_elsewhere


def _has_room(num_in_flight: int, count: int, most: int) -> bool:
    """Whether `count` more may start; a text of more pieces than the limit starts alone."""
    return not most or not num_in_flight or num_in_flight + count <= most
