"""The engine's figures per model. API servers export them in their own formats."""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """One thing that is counted.

    Attributes:
        help: What it is.
        grows: It only grows, from 0 at the start; otherwise it is a level.
    """

    help: str
    grows: bool


def _level(text: str) -> Figure:
    return Figure(text, grows=False)


def _count(text: str) -> Figure:
    return Figure(text, grows=True)


# The keys of `Engine.load`.
FIGURES: dict[str, Figure] = {
    "running": _level("Running sequences."),
    "waiting": _level("Sequences that wait to run."),
    "paused": _level("Sequences that were paused."),
    "pages": _level("Pages of keys and values."),
    "free_pages": _level("Pages that hold nothing."),
    "available_pages": _level("Pages that can be handed out: free, or kept for prefixes alone."),
    "page_bytes": _level("Bytes of one page."),
    "weight_bytes": _level("Bytes of the weights on the device, as planned."),
    "state_bytes": _level("Bytes of codec states on the device, as planned."),
    "graph_bytes": _level("Bytes of buffers of captured steps on the device, as planned."),
    "shared_bytes": _level(
        "Bytes that all models of the device share, as planned: working memory of captured steps,"
        " workspace, and what is left free."
    ),
    "host_pages": _level("Pages in host memory."),
    "disk_pages": _level("Pages on disk."),
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
