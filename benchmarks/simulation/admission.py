"""What does a limit of the predicted wait do to first audio under four times too much, on paper?

Two simulated engines with the prices of the embedded model on a core each, which sustain 4.8
streams a second together, and the router's own placement. The limit is a multiple of the 95th
percentile of idle engines. There is no API server here, so only engines delay a stream.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.measure import write_result
from benchmarks.simulation.arrivals import Arrival, Playback, percentile_ms
from benchmarks.simulation.batching_delay import STREAMS
from benchmarks.simulation.device import Script
from benchmarks.simulation.fleet import Fleet, FleetShape
from benchmarks.simulation.scale import tiny_machine, workload
from izwi.config import EngineConfig
from izwi.router.options import RouterOptions

_FIRST = 40


def play(arrivals: list[Arrival], scripts: dict[str, Script], max_wait_s: float) -> list[Playback]:
    """Return what listeners hear, with a limit of the wait or with none (0)."""
    router = RouterOptions("least_load", max_wait_s=max_wait_s)
    fleet = Fleet(FleetShape((2,), router), STREAMS, tiny_machine(), EngineConfig(), scripts)
    return fleet.run(arrivals)


def p95_ms(played: list[Playback]) -> float:
    """Return the 95th percentile of first audio of those that were accepted."""
    return percentile_ms([one.first_audio_s for one in played if one.chunks], 95) or 0.0


def rows(per_s: float, count: int, factor: float) -> list[dict[str, Any]]:
    """Return the rows of one rate: idle, without a limit, and with one."""
    arrivals, scripts = workload(per_s, count)
    spread = [Arrival(200 * one.at_s, one.request) for one in arrivals[:60]]
    idle_ms = p95_ms(play(spread, scripts, 0.0))
    found = []
    for max_wait_s in (0.0, factor * idle_ms / 1e3):
        played = play(arrivals, scripts, max_wait_s)
        accepted = [one for one in played if not one.refused]
        later_ms = p95_ms(played[count // 2 :])
        found.append(
            {
                "per_s": per_s,
                "max_wait_ms": round(1e3 * max_wait_s, 1),
                "accepted": len(accepted),
                "refused": count - len(accepted),
                "idle_p95_ms": round(idle_ms, 2),
                "first_40_p95_of_idle": round(p95_ms(accepted[:_FIRST]) / idle_ms, 2),
                "second_half_p95_of_idle": round(later_ms / idle_ms, 2),
            }
        )
    return found


def main() -> None:
    """Simulate, and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", type=float, nargs="+", default=[15.0, 19.0, 23.0])
    parser.add_argument("--arrivals", type=int, default=400)
    parser.add_argument("--limit", type=float, default=1.3, help="of the idle p95")
    options = parser.parse_args()
    found = [row for per_s in options.rates for row in rows(per_s, options.arrivals, options.limit)]
    for row in found:
        print(row)
    write_result("admission_simulated", found, limit=options.limit)


if __name__ == "__main__":
    main()
