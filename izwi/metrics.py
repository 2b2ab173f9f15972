"""The engine's figures per model. API servers export them in their own formats."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple


class Figure(NamedTuple):
    """One thing that is counted.

    Attributes:
        help: What it is.
        grows: It only grows, from 0 at the start; otherwise it is a level.
    """

    help: str
    grows: bool


class Distribution(NamedTuple):
    """How the values of one thing are distributed, in buckets.

    `Engine.load` has a figure for each bucket and one for the sum of the values, by `keys`.

    Attributes:
        help: What it is.
        bounds: Upper bounds of the buckets, rising; above the last one is one bucket more.
        metric: The metric that shows it.
        phase: Which of several distributions of that metric it is; empty if there is one.
    """

    help: str
    bounds: tuple[float, ...]
    metric: str
    phase: str = ""

    def keys(self, name: str) -> tuple[str, ...]:
        """Return the keys of its buckets, then that of the sum."""
        return (*(f"{name}_le_{bound:g}" for bound in self.bounds), f"{name}_more", f"{name}_sum")

    def cumulative(
        self, name: str, figures: Mapping[str, float]
    ) -> tuple[list[tuple[str, float]], float]:
        """Return Prometheus' buckets (bound as text, values up to it), and the sum."""
        *keys, last = self.keys(name)
        bounds = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        totals = accumulate(figures[key] for key in keys)
        return list(zip(bounds, totals, strict=True)), figures[last]


class Observed:
    """Values of a distribution, counted."""

    def __init__(self, name: str):
        distribution = DISTRIBUTIONS[name]
        self._bounds, self._keys = distribution.bounds, distribution.keys(name)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def sum(self) -> float:
        """The sum of all values."""
        return self._sum

    @property
    def figures(self) -> dict[str, float]:
        """The figures of `Engine.load`."""
        return dict(zip(self._keys, (*self._counts, self._sum), strict=True))


def _level(text: str) -> Figure:
    return Figure(text, grows=False)


def _count(text: str) -> Figure:
    return Figure(text, grows=True)


# The keys of `Engine.load`, beside those of `DISTRIBUTIONS`.
FIGURES: dict[str, Figure] = {
    "running": _level("Running sequences."),
    "waiting": _level("Sequences that wait to run."),
    "paused": _level("Sequences that were paused."),
    "pages": _level("Pages of keys and values."),
    "free_pages": _level("Pages that hold nothing."),
    "available_pages": _level("Pages that can be handed out: free, or kept for prefixes alone."),
    "page_bytes": _level("Bytes of one page."),
    "page_positions": _level("Positions that one page holds."),
    "weight_bytes": _level("Bytes of the weights on the device, as planned."),
    "state_bytes": _level("Bytes of codec states on the device, as planned."),
    "graph_bytes": _level("Bytes of buffers of captured steps on the device, as planned."),
    "shared_bytes": _level(
        "Bytes that all models of the device share, as planned: working memory of captured steps,"
        " workspace, and what is left free."
    ),
    "host_pages": _level("Pages in host memory."),
    "disk_pages": _level("Pages on disk."),
    "encoded_bytes": _level("Bytes of kept results of encoders, so that equal audio runs once."),
    "saved_state_bytes": _level("Bytes of codec states of preempted streams, in host memory."),
    "step_seconds": _level("Predicted seconds of a step with all running sequences."),
    "least_slack_seconds": _level(
        "Least slack of answers that play: seconds until a listener hears a gap; +Inf without any."
    ),
    "gap_seconds": _count("Seconds for which listeners heard nothing in the middle of an answer."),
    "steps": _count("Steps."),
    "rows": _count("Rows of all steps: sequences that decoded, or a part of a prompt."),
    "positions": _count("Positions of all steps: tokens and frames that went through the model."),
    "schedule_seconds": _count("Seconds in which steps were planned."),
    "launch_seconds": _count("Seconds in which steps were launched, with their audio encoders."),
    "wait_seconds": _count("Seconds in which the host waited for the device, or computed for it."),
    "process_seconds": _count("Seconds in which results were processed, with the codec."),
    "prefix_positions_asked": _count("Positions that sequences started with."),
    "prefix_positions_hit": _count("Of these, positions whose keys and values were known."),
    "pages_demoted": _count("Pages that went down a tier."),
    "pages_promoted": _count("Pages that came back from a lower tier."),
    "host_page_hits": _count("Pages that were read from host memory."),
    "disk_page_hits": _count("Pages that were read from disk."),
    "drafted": _count("Entries that were guessed before they were drawn."),
    "accepted": _count("Of these, entries that were guessed right, and cost no step."),
    "preempted": _count("Sequences whose pages or place went to others."),
    "pauses": _count("Sequences paused on request."),
    "resumes": _count("Sequences resumed on request."),
    "refused": _count("Sequences that could not start in time."),
    "compilations": _count("Kernels compiled, or loaded from disk, while requests were served."),
    "graph_captures": _count("Graphs captured while requests were served."),
}

_PART_S = (0.0001, 0.0003, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0)
_PARTS = "Host seconds of one step by phase: schedule, launch, wait for the device, process."


def _part(phase: str) -> Distribution:
    return Distribution(_PARTS, _PART_S, "step_phase_seconds", phase)


# By the names under which `Engine.load` has their figures.
DISTRIBUTIONS: dict[str, Distribution] = {
    "slack": Distribution(
        "Slack of audio of answers that play, when it was ready: seconds before the listener would "
        "have heard a gap; below 0 it was heard.",
        (-1.0, -0.2, -0.05, 0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0),
        "slack_seconds",
    ),
    "batch": Distribution(
        "Rows of one step: the batch.", (1, 2, 4, 8, 16, 32, 64, 128, 256), "batch_rows"
    ),
    "schedule": _part("schedule"),
    "launch": _part("launch"),
    "wait": _part("wait"),
    "process": _part("process"),
}
# All keys of one model in `Engine.load`.
LOAD_KEYS = (
    *FIGURES,
    *(key for name, distribution in DISTRIBUTIONS.items() for key in distribution.keys(name)),
)
