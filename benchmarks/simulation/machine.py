"""A model of step costs on a machine, fitted to measured steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import numpy as np

from benchmarks.simulation.step_log import Kind, Step
from izwi.scheduler.cost import StepCost, fit

# Minimum ratio of measured to predicted step times. Slow steps, after a cold cache or a page fault,
# are drawn like all others.
_LEAST_FACTOR = 0.25
_LEAST_SAMPLES = 5
KINDS: tuple[Kind, ...] = tuple(product((False, True), repeat=3))


@dataclass(frozen=True, slots=True)
class Machine:
    """The costs of a simulated device.

    Attributes:
        compute: Prices of encoders, forward pass and codec, which the scheduler can learn.
        host: Prices of the rest of a step: planning, logs, delivery of chunks.
        factors: Ratios of measured to predicted step times, by kind of step. A simulated step takes
            its prediction times a measured factor of its kind, drawn at random; a factor of any
            kind if too few were measured. Empty for no variance.
        wake_s: From a request's arrival to the start of its step, if the engine was idle.
        reach_s: From the end of a step until its listener has the chunk.
    """

    compute: StepCost
    host: StepCost = field(default_factory=StepCost)
    factors: Mapping[Kind, tuple[float, ...]] = field(default_factory=dict)
    wake_s: float = 0.0
    reach_s: float = 0.0

    @staticmethod
    def from_steps(steps: Sequence[Step], wake_s: float = 0.0, reach_s: float = 0.0) -> Machine:
        """Learn the prices and the variance from recorded steps."""
        compute = fit([(step.work, step.compute_s) for step in steps])
        host = fit([(step.work, step.whole_s - step.compute_s) for step in steps])
        factors = defaultdict[Kind, list[float]](list)
        for step in steps:
            predicted_s = compute.seconds(step.work) + host.seconds(step.work)
            factors[step.kind].append(max(_LEAST_FACTOR, step.whole_s / predicted_s))
        every = [factor for of_kind in factors.values() for factor in of_kind]
        known = {
            kind: tuple(factors[kind] if len(factors[kind]) >= _LEAST_SAMPLES else every)
            for kind in KINDS
        }
        return Machine(compute, host, known, wake_s=wake_s, reach_s=reach_s)

    @property
    def summary(self) -> dict[str, Any]:
        """Return the prices in milliseconds and the variance of steps, for the results."""
        return {
            "compute_ms": {name: round(s * 1e3, 4) for name, s in asdict(self.compute).items()},
            "host_ms": {name: round(s * 1e3, 4) for name, s in asdict(self.host).items()},
            "measured_over_predicted_p5_p50_p95": {
                _name(kind): [round(float(x), 3) for x in np.percentile(factors, [5, 50, 95])]
                for kind, factors in self.factors.items()
            },
            "wake_ms": round(self.wake_s * 1e3, 3),
            "reach_ms": round(self.reach_s * 1e3, 3),
        }


def _name(kind: Kind) -> str:
    words = [word for word, so in zip(("cold", "prompt", "vocode"), kind, strict=True) if so]
    return " ".join(words) or "rows"
