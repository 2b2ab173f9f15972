"""The benchmark of the host's share still measures every part of a step."""

from __future__ import annotations

from benchmarks.serving.step_cost import measure


def test_every_part_is_measured() -> None:
    row = measure(2, 3, "deadline")
    for part in ("plan", "batch", "process"):
        assert 0 < row[f"{part}_us_p50"] <= row["total_us_p50"]
