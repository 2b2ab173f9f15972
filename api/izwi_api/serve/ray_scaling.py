"""How many engines a Ray cluster should run: a pure rule, and Ray's policy that applies it."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

from ray.serve.autoscaling_policy import PrometheusQueryMixin

from izwi_api.serve.ray_options import ScalingOptions

# The 95th percentile of the last minute over all API servers.
FIRST_AUDIO = (
    "histogram_quantile(0.95, sum by (le) "
    "(rate(izwi_audio_time_to_first_audio_seconds_bucket[1m])))"
)


class Signals(NamedTuple):
    """What engines report, all together.

    Attributes:
        least_slack_s: Least slack of an answer that plays; infinite if none does.
        first_audio_s: 95th percentile of the time to first audio, or None if unknown.
        running: Sequences that run.
        waiting: Sequences that wait.
    """

    least_slack_s: float = inf
    first_audio_s: float | None = None
    running: float = 0.0
    waiting: float = 0.0


def engines_wanted(num_engines: int, signals: Signals, options: ScalingOptions) -> int:
    """Return how many engines should run; Ray applies bounds and delays.

    One more while listeners are about to hear gaps, hear their first audio late, or wait. One less
    only if the others would run less than a share of what they can.
    """
    is_late = signals.first_audio_s is not None and signals.first_audio_s > options.first_audio_s
    if signals.least_slack_s < options.slack_s or is_late or signals.waiting > 0:
        return num_engines + 1
    others = num_engines - 1
    if others > 0 and signals.running < options.busy * options.streams * others:
        return others
    return num_engines


class SlackPolicy(PrometheusQueryMixin):
    """Ray's autoscaling policy of the deployment of engines.

    Args:
        options: The fields of `ScalingOptions`.
    """

    def __init__(self, **options: Any):
        self._options = ScalingOptions(**options)
        super().__init__(
            prometheus_address=self._options.prometheus or None,
            prometheus_queries=[FIRST_AUDIO],
        )

    def __call__(self, ctx: Any) -> tuple[int, dict[str, Any]]:
        """Return the number of engines for Ray's `AutoscalingContext`, and no state."""
        first_audio_s = (self.prometheus_metrics or {}).get(FIRST_AUDIO)
        signals = Signals(
            min(_latest(ctx, "least_slack_s"), default=inf),
            first_audio_s,
            sum(_latest(ctx, "running")),
            sum(_latest(ctx, "waiting")),
        )
        return engines_wanted(ctx.target_num_replicas, signals, self._options), {}


def _latest(ctx: Any, name: str) -> list[float]:
    """Return the latest value of a figure of each engine; a mean would be that of a past load."""
    series = (ctx.raw_metrics or {}).get(name, {})
    return [values[-1].value for values in series.values() if values]
