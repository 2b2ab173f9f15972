"""A circuit breaker: a model that keeps failing on one engine gets no requests there. Pure.

closed ──failures in a row──▶ open ──rest──▶ half-open: one request, the probe
   ▲                           ▲                │
   │                           └────it fails────┤  the next rest is twice as long
   └───────────────it succeeds──────────────────┘
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

# Failures without a success in between after which a circuit opens.
MOST_FAILURES = 5
# Seconds for which it stays open; at first, and at most.
FIRST_REST_S, LONGEST_REST_S = 5.0, 60.0


class CircuitState(StrEnum):
    """Whether an engine gets requests for a model."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitEvent(StrEnum):
    """What changes a circuit; processes that share circuits tell each other."""

    FAILED = "failed"  # the engine failed to run a request of the model
    WORKS = "works"  # it ran one
    PROBED = "probed"  # it was given a probe
    SKIPPED = "skipped"  # a request has ended without saying anything of the engine


class CircuitBreaker:
    """The circuit of one model on one engine, since its last request that ended well.

    Times are seconds on the caller's clock.
    """

    def __init__(self) -> None:
        self._num_failures = 0
        self._rest_s = FIRST_REST_S
        self._until_s: float | None = None  # when it has rested; None: closed
        self._is_probed = False

    def state(self, now_s: float) -> CircuitState:
        """Return its state."""
        if self._until_s is None:
            return CircuitState.CLOSED
        return CircuitState.OPEN if now_s < self._until_s else CircuitState.HALF_OPEN

    @property
    def num_failures(self) -> int:
        """Failures without a success in between; at most those that open it."""
        return min(self._num_failures, MOST_FAILURES)

    def allows(self, now_s: float) -> bool:
        """Whether the engine may get a request; half-open, only while no other one probes it."""
        state = self.state(now_s)
        return state is CircuitState.CLOSED or (
            state is CircuitState.HALF_OPEN and not self._is_probed
        )

    def start(self, now_s: float) -> None:
        """Note that the engine was given a request."""
        self._is_probed |= self.state(now_s) is CircuitState.HALF_OPEN

    def fail(self, now_s: float) -> bool:
        """Count a request that the engine failed to run; return whether that has opened it.

        Requests from before it opened may fail later; they do not make the rest longer.
        """
        self._num_failures += 1
        state = self.state(now_s)
        if state is CircuitState.OPEN or (
            state is CircuitState.CLOSED and self._num_failures < MOST_FAILURES
        ):
            return False
        if state is CircuitState.HALF_OPEN:
            self._rest_s = min(2 * self._rest_s, LONGEST_REST_S)
        self._until_s, self._is_probed = now_s + self._rest_s, False
        return True

    def skip(self) -> None:
        """Note that a request has ended without saying anything of the engine."""
        self._is_probed = False


def change_circuit(
    circuits: dict[str, CircuitBreaker], model: str, event: CircuitEvent, now_s: float
) -> bool:
    """Change the circuit of a model on the engine that the circuits belong to.

    Returns:
        Whether that has opened it.
    """
    if event is CircuitEvent.FAILED:
        return circuits.setdefault(model, CircuitBreaker()).fail(now_s)
    if event is CircuitEvent.WORKS:
        circuits.pop(model, None)  # a new one is closed
    elif (circuit := circuits.get(model)) is not None:
        if event is CircuitEvent.PROBED:
            circuit.start(now_s)
        else:
            circuit.skip()
    return False


def open_circuits(circuits: Mapping[str, CircuitBreaker], now_s: float) -> dict[str, str]:
    """Return the state of each circuit of an engine that is not closed, by model."""
    states = {name: one.state(now_s) for name, one in circuits.items()}
    return {name: one.value for name, one in states.items() if one is not CircuitState.CLOSED}
