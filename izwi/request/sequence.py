"""A request while it runs: its log, the caches of that log, and what steps in flight will add.

Knows no model. The caches (encoded audio, KV pages, codec row) may be dropped and rebuilt from the
log. The next step is planned and built on the prediction of those in flight.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from izwi.arrays import Float32
from izwi.request.request import KnowsEncodeEnds, Reason, Request
from izwi.request.timing import TimedEvent, Timing
from izwi.request.track_log import ONE_TRACK, Entry, Following, TrackProgress, Tracks


class Phase(StrEnum):
    """The phase of a sequence."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    PAUSED = "paused"
    FINISHED = "finished"


class PauseReason(StrEnum):
    """Why a sequence does not run although it has not ended."""

    TURN = "turn"  # a caller paused it, for example because the user speaks
    INPUT = "input"  # its next frame needs text that is not written yet
    MEMORY = "memory"  # its pages went to another sequence


@dataclass(slots=True, eq=False)
class Status:
    """Whether a sequence runs, and why not.

    Attributes:
        phase: The phase.
        paused: Why it does not run, or None.
        backpressured: Its reader is behind; it emits nothing until the reader catches up.
        ended: It emits no more entries; its last audio may not be computed yet.
        reason: Why it ended.
        last_step: The scheduler's step in which it last had a row, or arrived.
        paused_s: Seconds for which callers have paused it so far.
    """

    phase: Phase = Phase.WAITING
    paused: PauseReason | None = None
    backpressured: bool = False
    ended: bool = False
    reason: Reason | None = None
    last_step: int = 0
    paused_s: float = 0.0


@dataclass(slots=True, eq=False)
class Input:
    """The log of a sequence's input.

    Attributes:
        written: Text ids written after the prompt.
        is_open: More text may be written.
    """

    written: tuple[int, ...] = ()
    is_open: bool = False


@dataclass(slots=True, eq=False)
class Output:
    """Output of a sequence besides its entries.

    Attributes:
        logprobs: One for each emitted entry if the request asks for them, else empty: a number, or
            a row of `Chunk.logprobs`.
        num_delivered: Entries delivered to its reader.
    """

    logprobs: list[Any] = field(default_factory=list)
    num_delivered: int = 0


@dataclass(slots=True, eq=False)
class KV:
    """Which positions of a sequence have keys and values, and what the prefix tree knows of them.

    Attributes:
        num_computed: Positions whose keys and values are in the pages.
        pages: Page ids, in position order.
        keys: Content keys of the first positions, as far as they were computed.
        page_chain: A running digest of each whole page of the prompt's keys.
        num_published: Whole pages that were published to the prefix tree.
        num_reused: Positions found in the prefix tree at its last admission.
    """

    num_computed: int = 0
    pages: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    page_chain: tuple[int, ...] | None = None
    num_published: int = 0
    num_reused: int = 0


@dataclass(slots=True, eq=False)
class AudioCursor:
    """How many frames of a sequence are audio, and the codec state at that point.

    Attributes:
        num_vocoded: Frames that went through the codec.
        chunks: Frames of each chunk of audio so far, `num_vocoded` together.
        num_full: How many chunks were counted, and how many of these had their full length.
        state_row: Row of the codec state arena, or None.
        saved_state: The codec's state while it has no row; None: it is rebuilt from the log.
        num_repeated_samples: Number of next samples that an earlier engine has already delivered.
    """

    num_vocoded: int = 0
    chunks: list[int] = field(default_factory=list)
    num_full: tuple[int, int] = (0, 0)
    state_row: int | None = None
    saved_state: Any = None
    num_repeated_samples: int = 0

    def repeat(self, num_samples: int) -> None:
        """Restart the audio from its beginning; the first `num_samples` are already delivered."""
        self.num_vocoded, self.chunks, self.num_full = 0, [], (0, 0)
        self.num_repeated_samples = num_samples

    def new_part(self, samples: Float32) -> Float32 | None:
        """Return the part of (samples,) that is not delivered yet, or None."""
        if not self.num_repeated_samples:
            return samples
        repeated = min(len(samples), self.num_repeated_samples)
        self.num_repeated_samples -= repeated
        return samples[repeated:] if repeated < len(samples) else None


@dataclass(slots=True, eq=False)
class Drawing:
    """How the entries of a sequence are drawn, and how many.

    Attributes:
        reads_log: See `Request.reads_log`.
        adjusts: Whether the logits of any of its tracks are adjusted.
        memo: What samplers derived from the log; see `izwi.sampling.draws.SamplerState`.
        grammar: An `izwi.sampling.grammars.GrammarState`, or None without a grammar.
        limit: Number of entries at which it ends, once that is known.
        drafting: An `izwi.scheduler.drafts.Drafting`; None before the first draft, False if its
            model's entries are not drafted.
    """

    reads_log: bool
    adjusts: bool
    memo: dict[Any, Any] = field(default_factory=dict)
    grammar: Any = None
    limit: int | None = None
    drafting: Any = None

    @classmethod
    def from_request(cls, request: Request) -> Drawing:
        """Read from a request, once, what every step needs."""
        adjusts = any(map(request.adjusts, range(1 + len(request.other_tracks))))
        return cls(request.reads_log, adjusts)


@dataclass(slots=True)
class Pending:
    """What steps in flight will add to a sequence.

    A launch predicts, with `launch` and `vocode`; results take its place, with `arrive` and
    `vocoded`; `reconcile` tells whether the log went another way.

    Attributes:
        entries: Number of entries that they draw; at most 1 when a step is planned, because steps
            with rows that draw several are waited for.
        frames: Number of frames that they decode to audio.
        chunks: Number of chunks of these frames.
        ends: No more entries follow.
        epoch: How often what was in flight was dropped. Work launched before is ignored.
        tracks: Track that each of the entries is drawn on, in order.
        progress: Most likely progress after them; None if the log ends.
    """

    entries: int = 0
    frames: int = 0
    chunks: int = 0
    ends: bool = False
    epoch: int = 0
    tracks: list[int] = field(default_factory=list, compare=False)
    progress: TrackProgress | None = field(default=None, compare=False)

    def after(self, known: TrackProgress) -> TrackProgress | None:
        """Return the most likely progress after the entries in flight; None if the log ends.

        Args:
            known: The progress after the known entries.
        """
        return self.progress if self.tracks else known

    def launch(
        self, known: TrackProgress, following: Following, request: Request, *, is_last: bool
    ) -> None:
        """Predict the entry of a row that is launched.

        Args:
            known: The progress after the known entries.
            following: The model's function for the next track.
            request: The request.
            is_last: Whether the log reaches its limit with the entry.
        """
        before = self.after(known)
        assert before is not None  # else no row would run
        self.entries += 1
        self.tracks.append(before.track)
        self.progress = following(request, before, None)
        self.ends = is_last or self.progress is None

    def vocode(self, frames: int) -> None:
        """Predict a chunk of audio."""
        self.frames += frames
        self.chunks += 1

    def arrive(self, count: int = 1) -> None:
        """Replace the oldest entries by the results of a row."""
        self.entries -= count
        self.ends = self.ends and self.entries > 0
        del self.tracks[:count]

    def vocoded(self, frames: int) -> None:
        """Replace a chunk of audio by a result."""
        self.frames -= frames
        self.chunks -= 1

    def reconcile(self, known: TrackProgress, following: Following, request: Request) -> bool:
        """Compare the log with the tracks for which steps in flight were launched.

        Args:
            known: The progress after the known entries.
            following: The model's function for the next track.
            request: The request.

        Returns:
            Whether they draw on the right tracks. The progress after them is predicted again.
        """
        progress: TrackProgress | None = known
        for track in self.tracks:
            if progress is None or progress.track != track:
                return False
            progress = following(request, progress, None)
        self.progress = progress
        return True

    def drop(self) -> None:
        """Drop all that is in flight: what is needed of it is drawn again."""
        self.entries = self.frames = self.chunks = 0
        self.ends, self.progress = False, None
        self.tracks.clear()
        self.epoch += 1


@dataclass(slots=True, eq=False)
class Sequence:
    """A request and its log, and the caches of that log.

    The log is `emitted`, `input`, and the progress of `audio`; everything else is rebuilt from it.

    Attributes:
        arrival: Number of arrivals before it, in the whole engine.
        submitted_s: When it was submitted, on the engine's clock.
        emitted: The log: entries of (codebooks,) ids, one for each step; a token has one id.
        tracks: The tracks of these entries.
        input: The log of its input.
        output: Output besides the entries.
        status: Whether it runs, and why not.
        timing: When it passed its phases.
        encoded: Results of the prompt's encode inputs; None where they have not run.
        kv: Its pages, and what the prefix tree knows of them.
        audio: How many of its frames are audio.
        pending: What steps in flight will add to it.
        drawing: How its entries are drawn.
        num_prompt: Number of positions of the prompt.
        output_positions: Positions of the prompt at which entries are drawn; empty if they follow
            the prompt.
        encode_ends: As `KnowsEncodeEnds.encode_ends`; empty if all are needed.
        adapter: The request's adapter on the device; None without one.
    """

    request: Request
    arrival: int
    submitted_s: float = 0.0
    emitted: list[Entry] = field(init=False, default_factory=list)
    tracks: Tracks = field(init=False, default=ONE_TRACK)
    input: Input = field(init=False, default_factory=Input)
    output: Output = field(init=False, default_factory=Output)
    status: Status = field(init=False, default_factory=Status)
    timing: Timing = field(init=False, default_factory=Timing)
    encoded: list[Any] = field(init=False)
    kv: KV = field(init=False, default_factory=KV)
    audio: AudioCursor = field(init=False, default_factory=AudioCursor)
    pending: Pending = field(init=False, default_factory=Pending)
    drawing: Drawing = field(init=False)
    num_prompt: int = field(init=False)
    output_positions: tuple[int, ...] = field(init=False)
    encode_ends: tuple[int, ...] = field(init=False)
    adapter: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.encoded = [None] * len(self.request.prompt.encode_inputs)
        self.input.is_open = self.request.open_input
        # read for every row in every step
        self.num_prompt = self.request.prompt.num_positions
        self.output_positions = self.request.output_positions
        self.drawing = Drawing.from_request(self.request)
        prompt = self.request.prompt
        self.encode_ends = prompt.encode_ends if isinstance(prompt, KnowsEncodeEnds) else ()

    def missing_encodes(self, num_computed: int) -> list[int]:
        """Return the encode inputs that must run before the positions after the computed ones."""
        ends = self.encode_ends
        return [
            i
            for i, result in enumerate(self.encoded)
            if result is None and (not ends or ends[i] > num_computed)
        ]

    def note(self, event: TimedEvent, now_s: float, lasted_s: float = 0.0) -> None:
        """Add an event to its timing."""
        self.timing.note(event, now_s - self.submitted_s, lasted_s)

    @property
    def emits_nothing(self) -> bool:
        """Whether only its prompt may be computed for now."""
        grammar = self.drawing.grammar
        return self.status.backpressured or (grammar is not None and not grammar.is_ready)

    @property
    def num_entries(self) -> int:
        """Entries emitted, plus those that a step in flight draws."""
        return len(self.emitted) + self.pending.entries

    @property
    def frames(self) -> list[Entry]:
        """Entries that become audio, in models that make any."""
        return self.tracks.frames(self.emitted)

    @property
    def num_frames(self) -> int:
        """Frames emitted, plus those that a step in flight most likely draws."""
        return self.tracks.num_frames(self.num_entries, self.pending.tracks)

    @property
    def next_track(self) -> int:
        """Track of the entry that the next row draws."""
        following = self.pending.after(self.tracks.progress)
        assert following is not None  # else no row would run
        return following.track

    @property
    def next_frames(self) -> int:
        """Number of frames that the next row most likely draws: 1 or 0."""
        if self.tracks is ONE_TRACK:  # read for every sequence in every step
            return 1
        following = self.pending.after(self.tracks.progress)
        return int(following is not None and self.tracks.is_frame(following.track))

    @property
    def num_positions(self) -> int:
        """Positions of the prompt, and one for each entry after it."""
        return self.num_prompt + (0 if self.output_positions else self.num_entries)

    @property
    def next_drawn(self) -> int:
        """The position whose output gives the next entry: an output position, or the last one."""
        count = len(self.emitted)
        return (
            self.output_positions[count] if self.output_positions else self.num_prompt + count - 1
        )

    def drawn_before(self, stop: int) -> tuple[int, ...]:
        """Return the positions before `stop` whose outputs give the next entries, one each."""
        if self.output_positions:
            return self.output_positions[
                len(self.emitted) : bisect_left(self.output_positions, stop)
            ]
        last = self.num_prompt + len(self.emitted) - 1
        return (last,) if last < stop else ()
