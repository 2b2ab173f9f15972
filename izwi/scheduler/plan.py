"""The values between queues and policies: views, budgets, plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from math import inf
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from izwi.scheduler.cost import StepCost, StepWork

# While callers contend, excess work takes at most this share of the time of other work.
EXCESS_SHARE = 0.5


class Progress(Struct, frozen=True, kw_only=True, gc=False):
    """The progress of a sequence, and what it may run next.

    Attributes:
        num_positions: Positions known (prompt and log).
        num_computed: Of these, positions whose keys and values are in pages; for a waiting
            sequence, positions found in the prefix tree. Less than `num_positions`.
        num_encodes: Pieces of audio still to encode before the first position runs.
        encode_only: It ends once its audio is encoded.
        backpressured: Emits nothing for now (its reader is behind, or its text is not written yet);
            its prompt may run, except for the last position.
        ended: Emits no more entries; only vocoder work is left.
    """

    num_positions: int
    num_computed: int = 0
    num_encodes: int = 0
    encode_only: bool = False
    backpressured: bool = False
    ended: bool = False

    @property
    def num_missing(self) -> int:
        """Positions known whose keys and values are not in pages."""
        return self.num_positions - self.num_computed


class Urgency(Struct, frozen=True, kw_only=True, gc=False):
    """How soon a sequence should be served.

    Attributes:
        slack_s: Seconds until playback underruns, or until the first audio is late; negative if it
            is late already. `inf` marks background work.
        started: Whether its first audio or text was delivered.
        idle_steps: Steps since it last ran, or since it arrived.
        priority: Larger goes first.
        turn: Place among new requests of several callers, from 1; 0 if there is only one.
        excess: Its caller has an earlier request, and others have work; see
            `izwi.scheduler.callers`.
    """

    slack_s: float = inf
    started: bool = False
    idle_steps: int = 0
    priority: int = 0
    turn: int = 0
    excess: bool = False


class FramesDue(Struct, frozen=True, kw_only=True, gc=False):
    """Frames of a sequence that are not audio yet.

    Attributes:
        frames: Emitted frames that are not decoded to audio yet.
        chunk: Frames of its next audio chunk; 0 if the model has no audio output.
        next_frames: Frames that its next entry adds: 0 if that is text.
    """

    frames: int = 0
    chunk: int = 0
    next_frames: int = 1


# For models without audio output.
NO_FRAMES = FramesDue()


class View(Struct, frozen=True, kw_only=True, gc=False):
    """A policy's view of one sequence.

    Views are made for every sequence in every step: a frozen `Struct` costs less to make and to
    read than a named tuple.

    Attributes:
        key: Identifies the sequence; a smaller key arrived earlier.
        progress: Its progress, and what it may run next.
        num_pages: Pages that need no allocation: its own, or, if it waits, shared ones that another
            sequence holds.
        num_shared: Of `num_pages`, pages that other sequences hold too, so that preempting this
            one does not free them.
        urgency: How soon it should be served.
        audio: Its frames that are not audio yet.
    """

    key: int
    progress: Progress
    num_pages: int = 0
    num_shared: int = 0
    urgency: Urgency = Urgency()
    audio: FramesDue = NO_FRAMES

    def with_prefix(self, num_computed: int, num_pages: int, num_encodes: int) -> View:
        """Return the view of a waiting sequence with its match in the prefix tree."""
        progress = replace(self.progress, num_computed=num_computed, num_encodes=num_encodes)
        return replace(self, progress=progress, num_pages=num_pages)


class Budgets(NamedTuple):
    """What one step may spend.

    Attributes:
        page_size: Positions of a page.
        free_pages: Pages that can be allocated: free ones, and those that only the tree holds.
        tokens: Positions of the forward pass.
        encodes: Pieces of audio.
        running: Sequences that may run at the same time, ended ones that owe audio included.
        vocodes: Streams whose audio one step may make.
        step_s: Predicted time above which a step takes on no more work that can wait.
        cost: Predicts that time.
        new_requests: Requests started per step (moving average).
        far_new_requests: Those of them that were far ahead of playback, or background work.
        since_start: Steps since a request last started.
        codec_overlaps: The codec runs concurrently with the next step, so that it delays few rows.
        excess_s: Predicted time of excess work beyond that of other work; infinite without limit.
        prompts_s: Predicted time of a step to which prompts are added at most, except for the first
            one; the slack of what plays may allow less.
    """

    page_size: int
    free_pages: int
    tokens: int
    encodes: int
    running: int
    vocodes: int
    step_s: float = inf
    cost: StepCost = StepCost()
    new_requests: float = 0.0
    since_start: int = 0
    codec_overlaps: bool = False
    far_new_requests: float = 0.0
    excess_s: float = inf
    prompts_s: float = inf


class Forward(NamedTuple):
    """Run positions [start, stop) of a sequence."""

    key: int
    start: int
    stop: int


class Plan(NamedTuple):
    """One step of one model.

    Attributes:
        preempt: Sequences that first give up their pages and places; they wait again.
        admit: Sequences that stop waiting. Each has an encode or a row in this step.
        encode: Number of pieces of audio to encode for each sequence, before the forward pass.
        forward: Rows of the one forward pass.
        vocode: Number of frames that become audio for each sequence, after the forward pass. A row
            that emits counts as one more frame; if it ends instead, the existing frames are used.
    """

    preempt: tuple[int, ...] = ()
    admit: tuple[int, ...] = ()
    encode: tuple[tuple[int, int], ...] = ()
    forward: tuple[Forward, ...] = ()
    vocode: tuple[tuple[int, int], ...] = ()

    @property
    def work(self) -> StepWork:
        """The step as counts, for the cost model."""
        return StepWork.from_rows(
            [stop - start for _, start, stop in self.forward],
            sum([count for _, count in self.encode]),
            [frames for _, frames in self.vocode],
        )


# Smaller comes first. Only values of the same policy are comparable.
Rank = Callable[[View], tuple[float, ...]]


class Order(Enum):
    """Which waiting sequences a policy sees if there are more than it can start.

    ARRIVAL: the earliest. PRIORITY: the highest, and those that have been idle longest. SLACK: the
    streams that would be late first, and the earliest of the background work.
    """

    ARRIVAL = auto()
    PRIORITY = auto()
    SLACK = auto()


class Policy(NamedTuple):
    """A way to fill steps.

    Attributes:
        rank: The order of waiting sequences; smaller comes first.
        plan: (running, waiting, budgets) -> the step. Both lists may come in any order.
        order: Which waiting sequences are in `waiting`.
    """

    name: str
    rank: Rank
    plan: Callable[[Sequence[View], Sequence[View], Budgets], Plan]
    order: Order = Order.ARRIVAL
