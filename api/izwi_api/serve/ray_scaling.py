"""Autoscaling policy of Ray Serve for engines: collects figures, and asks `izwi.router.scaling`.

Ray's controller loads this module by value, so it must not keep anything at module level.
"""

from __future__ import annotations

from typing import Any

from ray.serve.autoscaling_policy import PrometheusQueryMixin
from ray.serve.config import AutoscalingContext

from izwi.router.scaling import EngineFigures, ScalingRules, wanted_engines


class EngineScaling(PrometheusQueryMixin):  # type: ignore[misc]
    """Wants as many engines as their figures ask for; Ray applies delays and bounds.

    Args:
        streams_each: See `ScalingRules`.
        least_slack_s: See `ScalingRules`.
        first_audio_s: See `ScalingRules`.
        prometheus: Base URL of a Prometheus that scrapes the API servers; empty: first audio is
            not known.
    """

    def __init__(
        self,
        *,
        streams_each: int,
        least_slack_s: float,
        first_audio_s: float,
        prometheus: str = "",
    ):
        self._rules = ScalingRules(streams_each, least_slack_s, first_audio_s)
        buckets = "rate(izwi_audio_time_to_first_audio_seconds_bucket[1m])"
        self._query = f"histogram_quantile(0.95, sum by (le) ({buckets}))"
        super().__init__(
            prometheus_address=prometheus or None,
            prometheus_queries=[self._query] if first_audio_s > 0 else [],
        )

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Return how many engines there should be; it keeps no state of its own."""
        if context.current_num_replicas < context.target_num_replicas:
            return context.target_num_replicas, {}  # those that start will help
        known = context.aggregated_metrics or {}
        named = [known.get(name, {}) for name in EngineFigures.__dataclass_fields__]
        replicas = [one for one in context.running_replicas if all(one in each for each in named)]
        if len(replicas) < context.current_num_replicas:
            return context.target_num_replicas, {}  # the latest have not said anything yet
        figures = [EngineFigures(*(each[one] for each in named)) for one in replicas]
        first_audio_s = (self.prometheus_metrics or {}).get(self._query)
        return wanted_engines(figures, self._rules, first_audio_s), {}
