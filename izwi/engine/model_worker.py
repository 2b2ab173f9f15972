"""A model worker: one model's queues and runner, its steps in flight, and their results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import compress
from math import inf
from typing import Any

import numpy as np
from msgspec.structs import replace

from izwi.arrays import Float32
from izwi.backends.budget import MemoryBudget
from izwi.backends.protocol import Backend, PendingAudio
from izwi.cache.memory import PagedMemory
from izwi.config import EngineConfig
from izwi.engine.prefix_moves import PrefixReader, PrefixWriter
from izwi.errors import Overloaded
from izwi.metrics import Observed
from izwi.model.protocol import Model
from izwi.request.log import Log, retrace
from izwi.request.request import Chunk, Entries, Reason
from izwi.request.sequence import Phase, Sequence
from izwi.request.track_log import Following
from izwi.runner.runner import Drawn, Forward, Runner
from izwi.scheduler.callers import DeviceShares
from izwi.scheduler.cost import StepWork
from izwi.scheduler.playback import frames_to_vocode
from izwi.scheduler.scheduler import Scheduler
from izwi.scheduler.speculation import accepted
from izwi.scheduler.work import PlannedRow, Work

# How often, in steps, the predicted cost of computing positions again is updated.
_LEARN_EVERY = 32
# A step is launched when this share of the predicted time of the previous step is left. The
# measured lead time decays slowly, so that one slow step does not inflate later estimates.
_MARGIN = 0.25
# The lead time is the second longest of this many recent ones, because one may be an outlier.
_LEADS = 32
# While new requests can still join, the device is polled at intervals of this share of the time
# that it has run, so that a wrong prediction idles it for no longer than that.
_LEAST_POLL_S = 5e-4
_POLL_SHARE = 0.25
# Phases of a step on the host, whose times are counted.
_PHASES = ("schedule", "launch", "wait", "process")


class ModelWorker:
    """One model's queues and runner in the engine's loop."""

    def __init__(
        self, scheduler: Scheduler, runner: Runner, config: EngineConfig, clock: Callable[[], float]
    ):
        self.scheduler, self.runner = scheduler, runner
        self._config, self._clock = config, clock
        self._in_flight: deque[Launched] = deque()
        self._vocoding: dict[int, tuple[Sequence, PendingAudio]] = {}  # by arrival
        self._waits = True
        self._ended_s = -inf  # when the last step in flight ended
        self._planned_s = 0.0  # when planning of the last step began
        self._phases_s = {phase: Observed(phase) for phase in _PHASES}  # for metrics
        self._batches = Observed("batch")
        self._leads_s: deque[float] = deque([0.0], _LEADS)  # recent times of planning and launching
        self._nothing = np.zeros((0, runner.num_codebooks), dtype=np.int64)
        self._writes = runner.frame_s is None  # the model has text only

    @staticmethod
    def for_model(
        model: Model,
        backend: Backend,
        config: EngineConfig,
        budget: MemoryBudget,
        clock: Callable[[], float],
        device: DeviceShares | None = None,
    ) -> ModelWorker:
        """Set up a model with its share of the memory; models of one device share `device`."""
        runner = Runner(model, backend, config, budget)
        memory = PagedMemory(
            *(runner.num_pages, config.page_size, runner.page_tiers),
            whole_pages=runner.keeps_trailers,
        )
        scheduler = Scheduler(config, memory, runner.states, runner, device)
        return ModelWorker(scheduler, runner, config, clock)

    def prefix_reader(self, keys: Seq[int]) -> PrefixReader:
        """Read pages of a known prefix."""
        return PrefixReader(self.scheduler.memory, self.runner.page_tiers, keys)

    def prefix_writer(self, keys: Seq[int]) -> PrefixWriter:
        """Write pages of a prefix that another engine has computed."""
        return PrefixWriter(self.scheduler.memory, self.runner.page_tiers, keys)

    @property
    def load(self) -> dict[str, float]:
        """Figures of sequences and pages: the keys of `izwi.metrics.LOAD_KEYS`."""
        scheduler, memory, counts = self.scheduler, self.scheduler.memory, self.scheduler.counts
        return {
            "running": scheduler.num_running,
            "waiting": scheduler.num_waiting,
            "paused": scheduler.num_paused,
            "pages": memory.num_pages,
            "free_pages": memory.num_free,
            "available_pages": memory.num_available,
            "page_bytes": self.runner.page_bytes,
            "page_positions": self._config.page_size,
            **self.runner.budget.figures,
            "host_pages": self.runner.store.num_host,
            "disk_pages": self.runner.store.num_disk,
            "encoded_bytes": self.runner.encoded_bytes,
            "saved_state_bytes": self.runner.states.num_saved_bytes,
            "step_seconds": scheduler.cost.cost.seconds(StepWork(scheduler.num_running)),
            "prefix_positions_asked": memory.positions_asked,
            "prefix_positions_hit": memory.positions_hit,
            "pages_demoted": memory.num_demoted,
            "pages_promoted": memory.num_promoted,
            "host_page_hits": self.runner.store.num_host_hits,
            "disk_page_hits": self.runner.store.num_disk_hits,
            "least_slack_seconds": scheduler.clocks.least_slack_s(self._clock()),
            "gap_seconds": scheduler.clocks.gaps_s,
            "steps": counts.steps,
            "rows": counts.rows,
            "positions": counts.positions,
            "drafted": counts.drafted,
            "accepted": counts.accepted,
            **{f"{phase}_seconds": seconds.sum for phase, seconds in self._phases_s.items()},
            "preempted": counts.preempted,
            "pauses": counts.paused,
            "resumes": counts.resumed,
            "refused": counts.refused,
            "compilations": self.runner.compilations.kernels,
            "graph_captures": self.runner.compilations.graphs,
            **scheduler.clocks.slacks_s.figures,
            **self._batches.figures,
            **{key: n for one in self._phases_s.values() for key, n in one.figures.items()},
        }

    @property
    def num_prefix_changes(self) -> int:
        """How often the known prefixes have changed."""
        return self.scheduler.memory.num_prefix_changes

    def prefix_digests(self, limit: int) -> list[int]:
        """Return running digests of known pages, the most recently used first, up to a limit."""
        return self.scheduler.memory.digests(limit)

    def schedule(self, now_s: float) -> Work:
        """Plan the next step."""
        self._planned_s = now_s
        work = self.scheduler.schedule(now_s)
        self._waits = not (work.encode or work.forward or work.vocode)
        self._phases_s["schedule"].add(self._clock() - now_s)
        return work

    @property
    def has_work(self) -> bool:
        """Whether any sequence runs or waits, or a step is in flight."""
        return self.scheduler.has_work or bool(self._in_flight)

    @property
    def is_in_flight(self) -> bool:
        """Whether a step is in flight."""
        return bool(self._in_flight)

    @property
    def is_idle(self) -> bool:
        """Whether the last step ran nothing and no step is in flight."""
        return self._waits and not self._vocoding and not self._in_flight

    def launch(self, work: Work) -> None:
        """Run the encoders, and launch the forward pass; `results` waits for it."""
        if self._waits and not work.rebuild and self._in_flight:
            return  # the forward pass needs their results
        began_s, compiled = self._clock(), self.runner.num_compiled
        failed = self.runner.rebuild(work.rebuild) if work.rebuild else {}
        if work.encode:
            failed.update(self._encode(work.encode))
        encoded_s = self._clock()
        rows: Seq[PlannedRow] = work.forward
        if failed:
            rows = [row for row in rows if row.sequence.arrival not in failed]
        forward = self.runner.launch(rows)
        launched = Launched(work, failed, rows, forward, began_s, compiled)
        if forward is not None:
            launched.predict(self._limit, self.runner.following)
        now_s = self._clock()
        launched.seconds = now_s - began_s
        self._phases_s["launch"].add(launched.seconds)
        if self.runner.num_compiled == compiled:
            self._leads_s.append(began_s - self._planned_s + now_s - encoded_s)
        self._in_flight.append(launched)

    def _encode(self, pieces: Seq[tuple[Sequence, int]]) -> dict[int, BaseException]:
        """Encode piece i of each sequence's prompt; return errors by arrival."""
        failed: dict[int, BaseException] = {}
        inputs = [sequence.request.prompt.encode_inputs[i] for sequence, i in pieces]
        for (sequence, i), result in zip(pieces, self.runner.encode(inputs), strict=True):
            if isinstance(result, BaseException):
                failed[sequence.arrival] = result
            else:
                sequence.encoded[i] = result
        return failed

    @property
    def spare_s(self) -> float:
        """Seconds to wait for new requests before asking again; not above 0: plan the next step.

        A request that arrives before the next step is planned takes part in it, instead of one step
        later. The wait ends when the device is done, or is predicted to be nearly done.
        """
        launched = self._in_flight[0] if self._in_flight else None
        if launched is None or not self._stays() or launched.is_done:
            return 0.0
        runs_s = self.scheduler.cost.cost.seconds(launched.size)
        began_s, now_s = max(launched.began_s, self._ended_s), self._clock()
        left_s = began_s + (1.0 - _MARGIN) * runs_s - self._lead_s() - now_s
        # a prediction may be wrong, so the device is polled from time to time
        return min(left_s, max(_LEAST_POLL_S, _POLL_SHARE * (now_s - began_s)))

    def _lead_s(self) -> float:
        """Seconds that planning and launching a step takes."""
        return sorted(self._leads_s)[-2:][0]

    def results(self) -> Iterator[Results]:
        """Wait for the steps in flight, or run a step that could not be launched.

        The newest step stays in flight: the next one is launched behind it first, so that the
        device does not idle. Process results before taking the next ones.
        """
        while self._in_flight and (self._waits or not self._stays()):
            yield self._results(self._in_flight.popleft())

    def _stays(self) -> bool:
        newest = self._in_flight[0] if len(self._in_flight) == 1 else None
        return newest is not None and newest.forward is not None and not newest.reads_log

    def _results(self, launched: Launched) -> Results:
        began_s = self._clock()
        results = Results(launched.work, launched.failed, num_compiled=launched.num_compiled)
        fresh = launched.fresh()
        rows = list(compress(launched.rows, fresh))
        if launched.forward is None:
            every = self.runner.forward(rows)
            results.seconds = launched.seconds + self._clock() - began_s
        else:
            every = list(compress(launched.forward(), fresh))
            launched.reconcile(rows, every)
            ended_s = self._clock()  # the device began this step when the previous one ended
            results.seconds = ended_s - max(launched.began_s, self._ended_s)
            self._ended_s = ended_s
        self._count_rows(rows, self._clock() - began_s)
        for row, drawn in zip(rows, every, strict=True):
            if isinstance(drawn, BaseException):
                results.failed[row.sequence.arrival] = drawn
            elif row.draft:
                results.drawn.append((row.sequence, *self._verified(row, drawn)))
            else:
                results.drawn.append((row.sequence, drawn, row.stop))
        return results

    def _verified(self, row: PlannedRow, drawn: Drawn) -> tuple[Drawn, int]:
        """Return the entries that were drawn after right guesses only, and computed positions."""
        count = accepted(row.draft, drawn.entries)
        stop = self.scheduler.verified(row, count)
        return Drawn(drawn.entries[: count + 1], drawn.logprobs[: count + 1]), stop

    def _count_rows(self, rows: Seq[PlannedRow], waited_s: float) -> None:
        counts = self.scheduler.counts
        counts.rows += len(rows)
        counts.positions += sum([row.stop - row.start for row in rows])
        self._phases_s["wait"].add(waited_s)
        if rows:
            self._batches.add(len(rows))

    def process(self, results: Results, now_s: float) -> list[Chunk]:
        """Append to the logs, start due vocoder work, finish and free sequences, and return chunks.

        Waits for a stream's first audio. If the codec can overlap with the next step,
        later audio leaves with that step's results.
        """
        fresh = set[int]()
        writes, computed, append = self._writes, self.scheduler.computed, self._append
        for sequence, drawn, stop in results.drawn:
            computed(sequence, stop)
            if drawn.entries:
                sequence.status.phase = Phase.DECODE
                if append(sequence, drawn) and (writes or sequence.tracks.ends_with_text):
                    fresh.add(sequence.arrival)
                self._note_draw(sequence, now_s)
        begun = [s for s, _ in self._vocoding.values() if s.status.phase is not Phase.FINISHED]
        vocoded = self._vocode(results)
        chunks: list[Chunk] = []
        failed = results.failed
        changed = fresh | vocoded.keys() | failed.keys()
        for sequence in dict.fromkeys([*results.work.sequences(), *begun]):
            status, arrival = sequence.status, sequence.arrival
            if arrival not in changed and not (status.ended or sequence.request.encode_only):
                continue  # most streams: a frame was drawn that is no audio yet
            if status.phase is Phase.FINISHED:  # it was aborted while the step was in flight
                continue
            is_delivered, failure = arrival in fresh, failed.get(arrival)
            pcm = vocoded.get(arrival)
            if pcm is not None:
                pcm = sequence.audio.new_part(pcm)
            if pcm is not None or (is_delivered and writes):
                frames = 0.0 if pcm is None else len(pcm) / self.runner.frame_samples
                self.scheduler.delivered(sequence, frames, now_s)
            if pcm is not None and sequence.timing.first_audio_s is None:
                sequence.timing.first_audio_s = self._clock() - sequence.submitted_s
            if failure is not None:
                error = self.runner.as_error(failure)
                chunks.append(self.finish_request(sequence, Reason.ERROR, error=error))
            elif (status.ended or sequence.request.encode_only) and self._is_done(sequence):
                assert status.reason is not None
                chunks.append(self.finish_request(sequence, status.reason, pcm))
            elif is_delivered or pcm is not None:
                chunks.append(self._chunk(sequence, pcm))
        chunks += self._end_overdue(now_s)
        self._phases_s["process"].add(self._clock() - now_s)
        return chunks

    def _note_draw(self, sequence: Sequence, now_s: float) -> None:
        timing = sequence.timing
        if timing.first_entry_s is None:
            timing.first_entry_s = now_s - sequence.submitted_s
        if sequence.status.ended:
            timing.last_entry_s = now_s - sequence.submitted_s

    def set_up_sequence(self, sequence: Sequence, log: Log | None) -> None:
        """Set up a new sequence, at the end of its log if another engine has begun it.

        If the log is complete, the last entry is drawn again and ends the sequence here.
        """
        self.runner.set_up_tracks(sequence)
        if log is None:
            return
        sequence.timing.is_resumed = True
        log.restore(sequence, None if self._writes else self.runner.codec)
        if sequence.emitted and len(sequence.emitted) >= self._limit(sequence):
            sequence.emitted.pop()
        retrace(sequence, self.runner.following, self.runner.num_ids)
        if sequence.audio.num_vocoded > len(sequence.frames):  # those are drawn again
            sequence.audio.repeat(log.num_samples)

    def restore_playback(self, sequence: Sequence, log: Log) -> None:
        """Tell the scheduler what the listener of a resumed request has heard, and when."""
        frame_s, now_s = self.runner.frame_s, self._clock()
        if frame_s is None:
            return
        sample_s = frame_s / self.runner.frame_samples
        pairs = zip(log.chunk_ages_s, log.chunk_samples, strict=False)  # a log may have no ages
        heard = [(now_s - age_s, samples * sample_s) for age_s, samples in pairs]
        self.scheduler.clocks.restore(sequence.arrival, heard)

    def finish_request(
        self,
        sequence: Sequence,
        reason: Reason,
        pcm: Float32 | None = None,
        error: BaseException | None = None,
    ) -> Chunk:
        """End a request, free its memory, and return its last chunk."""
        is_encoded = sequence.request.encode_only and reason is Reason.STOP
        encoded = tuple(map(self.runner.to_host, sequence.encoded)) if is_encoded else ()
        self.scheduler.finish_request(sequence, reason)
        if sequence.drawing.grammar is not None:
            sequence.drawing.grammar.cancel()
        sequence.timing.ended_s = self._clock() - sequence.submitted_s
        return self._chunk(sequence, pcm, reason=reason, error=error, encoded=encoded)

    def close(self) -> None:
        """Free the tiers below the device. Nothing may be running."""
        self.runner.store.close()
        self.runner.grammars.close()

    def _append(self, sequence: Sequence, drawn: Drawn) -> Entries:
        """Append entries to the log; return them without a stop id, which is not emitted."""
        tracks, request, following = sequence.tracks, sequence.request, self.runner.following
        emitted, kept, reason = sequence.emitted, drawn.entries, None
        first, limit = len(emitted), sequence.drawing.limit
        if limit is None:
            limit = self._limit(sequence)
        for ids in kept:
            if tracks.stops(ids, request):
                reason = Reason.STOP
                break
            emitted.append(ids)
            if not tracks.append(ids, following, request):
                reason = Reason.STOP
                break
            if len(emitted) >= limit:
                reason = Reason.LENGTH
                break
        if reason is not None:
            kept = kept[: len(emitted) - first]
        if drawn.logprobs:
            sequence.output.logprobs += drawn.logprobs[: len(kept)]
        if reason is not None:
            self.scheduler.end(sequence, reason)
        elif sequence.pending.tracks and not sequence.pending.reconcile(
            tracks.progress, following, request
        ):
            self.scheduler.redraw(sequence)
        return kept

    def _limit(self, sequence: Sequence) -> int:
        """Return the number of entries at which a sequence ends."""
        if sequence.drawing.limit is not None:
            return sequence.drawing.limit
        limit, request = self.runner.max_entries(sequence), sequence.request
        if not request.output_positions:  # otherwise entries take no positions
            limit = min(limit, self.scheduler.capacity - sequence.num_prompt)
        if not request.open_input:  # otherwise it grows with the written text
            sequence.drawing.limit = limit
        return limit

    def _vocode(self, results: Results) -> dict[int, Float32]:
        """Start due vocoder work; return the finished audio by arrival, (samples,) float32."""
        began_s = self._clock()
        vocoded = awaited(self._vocoding, results)  # first, because their buffers are reused
        self._vocoding = {}
        first: dict[int, tuple[Sequence, PendingAudio]] = {}
        due = self._due(results)
        begun = self.runner.vocode(due) if due else []
        for (sequence, frames), pending in zip(due, begun, strict=True):
            if isinstance(pending, BaseException):
                results.failed[sequence.arrival] = pending
                continue
            waits = not sequence.audio.chunks or not self.runner.codec_overlaps
            (first if waits else self._vocoding)[sequence.arrival] = sequence, pending
            sequence.audio.num_vocoded += frames
            sequence.audio.chunks.append(frames)
        vocoded |= awaited(first, results)
        seconds = results.seconds
        if not self._in_flight:
            seconds += self._clock() - began_s
        work = results.work
        lengths = [row.stop - row.start for row in work.forward]
        ran = StepWork.from_rows(lengths, len(work.encode), [frames for _, frames in due])
        if self.runner.num_compiled == results.num_compiled:  # otherwise the time is not typical
            self.scheduler.cost.add(ran, seconds)
        return vocoded

    def _due(self, results: Results) -> list[tuple[Sequence, int]]:
        """Return the planned chunks whose frames exist: sequences, and numbers of frames."""
        due = []
        for sequence, chunk in results.work.vocode:
            if not self.scheduler.runs(sequence):  # it was removed meanwhile
                continue
            num_pending = len(sequence.frames) - sequence.audio.num_vocoded
            frames = frames_to_vocode(num_pending, chunk, ended=sequence.status.ended)
            if frames and sequence.arrival not in results.failed:
                due.append((sequence, frames))
        return due

    def _is_done(self, sequence: Sequence) -> bool:
        """Whether the last entry and its audio were delivered."""
        if sequence.request.encode_only:
            sequence.status.reason = Reason.STOP
            return all(result is not None for result in sequence.encoded)
        if sequence.arrival in self._vocoding:
            return False
        silent = self._writes or sequence.audio.num_vocoded == len(sequence.frames)
        return sequence.status.ended and silent

    def _end_overdue(self, now_s: float) -> list[Chunk]:
        """End requests that are over a deadline; at intervals, update predicted costs."""
        if self.scheduler.counts.steps % _LEARN_EVERY == 0:
            self.runner.learn(self.scheduler.cost.cost)
        late = self.scheduler.overdue(now_s)
        self.scheduler.counts.refused += sum(isinstance(error, Overloaded) for _, error in late)
        return [self.finish_request(s, Reason.ERROR, error=error) for s, error in late]

    def _chunk(self, sequence: Sequence, pcm: Float32 | None, **rest: Any) -> Chunk:
        """Return entries not yet delivered: frames come with their audio, text at once."""
        first = sequence.output.num_delivered
        new = sequence.emitted[first:]
        sequence.output.num_delivered = len(sequence.emitted)
        tracks = sequence.tracks.of_entries
        if tracks is not None:  # otherwise all are of one width
            width = self._nothing.shape[1]
            new = [ids + (-1,) * (width - len(ids)) for ids in new]
            rest["tracks"] = np.array(tracks[first:], dtype=np.int64)
        log = np.array(new, dtype=np.int64) if new else self._nothing
        if sequence.request.logprobs:
            rest["logprobs"] = np.array(sequence.output.logprobs[first:], dtype=np.float32)
        if pcm is not None and sequence.request.gain != 1.0:
            pcm = pcm * np.float32(sequence.request.gain)
        if not first or "reason" in rest:  # a copy: the chunk may be read while the request runs
            rest["timing"] = replace(sequence.timing, events=list(sequence.timing.events))
        return Chunk(sequence.request.request_id, log, pcm, **rest)


class Launched:
    """A step in flight.

    Attributes:
        work: The planned work.
        failed: Errors, by arrival of the sequence.
        rows: Rows of the forward pass.
        forward: Waits for the rows' results; None if the pass was not launched.
        began_s: Time of the launch, on the engine's clock.
        seconds: Duration of the launch.
        num_compiled: `Runner.num_compiled` before it was launched.
        reads_log: The next step cannot be planned before its results are known.
    """

    def __init__(
        self,
        work: Work,
        failed: dict[int, BaseException],
        rows: Seq[PlannedRow],
        forward: Forward | None,
        began_s: float,
        num_compiled: int,
    ):
        self.work, self.failed, self.rows = work, failed, rows
        self.forward, self.began_s, self.seconds = forward, began_s, 0.0
        self.num_compiled = num_compiled
        sequences = [row.sequence for row in rows]
        self.reads_log = any(row.draft for row in rows) or any(
            one.drawing.reads_log or one.output_positions for one in sequences
        )
        self._epochs = [row.sequence.pending.epoch for row in rows]
        self._several: dict[int, int] = {}  # entries of rows that draw several, by arrival
        self._vocoded: list[tuple[Sequence, int, int]] = []  # sequence, epoch, frames

    @property
    def size(self) -> StepWork:
        """Work that ends with the step; later audio is computed during the next one."""
        lengths = [row.stop - row.start for row in self.rows]
        return StepWork.from_rows(lengths, len(self.work.encode), ())

    @property
    def is_done(self) -> bool:
        """Whether the device has finished, so that waiting for results would not block."""
        return self.forward is not None and self.forward.is_done

    def fresh(self) -> list[bool]:
        """Return for each row whether its sequence has kept its pages since the launch."""
        pairs = zip(self.rows, self._epochs, strict=True)
        return [row.sequence.pending.epoch == epoch for row, epoch in pairs]

    def predict(self, limit: Callable[[Sequence], int], following: Following) -> None:
        """Predict the state of the sequences at the end of this step.

        Args:
            limit: Returns the number of entries at which a sequence ends.
            following: The model's function for the next track.
        """
        for sequence, _, stop, draft in self.rows:
            sequence.kv.num_computed = stop
            pending = sequence.pending
            entries = len(sequence.emitted) + pending.entries
            if sequence.output_positions:
                count = len(sequence.drawn_before(stop))
                self._several[sequence.arrival] = count
            elif draft:
                count = self._several[sequence.arrival] = 1 + len(draft)
            else:
                count = stop == sequence.num_prompt + entries
            for drawn in range(entries + 1, entries + count + 1):
                known, is_last = sequence.tracks.progress, drawn >= limit(sequence)
                pending.launch(known, following, sequence.request, is_last=is_last)
        for sequence, chunk in self.work.vocode:
            pending = sequence.pending
            num_pending = sequence.num_frames - sequence.audio.num_vocoded - pending.frames
            ended = sequence.status.ended or pending.ends
            frames = frames_to_vocode(num_pending, chunk, ended=ended)
            if frames:
                pending.vocode(frames)
                self._vocoded.append((sequence, sequence.pending.epoch, frames))

    def reconcile(self, rows: Seq[PlannedRow], every: Seq[Drawn | BaseException]) -> None:
        """Reconcile the prediction with the results.

        Args:
            rows: The rows whose sequences have kept their pages.
            every: The results of each row.
        """
        for row, drawn in zip(rows, every, strict=True):
            if isinstance(drawn, BaseException) or drawn.entries:
                row.sequence.pending.arrive(self._several.get(row.sequence.arrival, 1))
        for sequence, epoch, frames in self._vocoded:
            if sequence.pending.epoch == epoch:
                sequence.pending.vocoded(frames)


@dataclass(slots=True)
class Results:
    """The results of a step.

    Attributes:
        work: The planned work.
        failed: Errors, by arrival of the sequence.
        drawn: Rows that ran: sequence, drawn entries, computed positions.
        seconds: Duration so far.
        num_compiled: `Runner.num_compiled` before the step.
    """

    work: Work
    failed: dict[int, BaseException] = field(default_factory=dict)
    drawn: list[tuple[Sequence, Drawn, int]] = field(default_factory=list)
    seconds: float = 0.0
    num_compiled: int = 0


def awaited(
    begun: dict[int, tuple[Sequence, PendingAudio]], results: Results
) -> dict[int, Float32]:
    """Wait for pieces of audio; return them by arrival, and add errors to the results."""
    done: dict[int, Float32] = {}
    for arrival, (_, pending) in begun.items():
        try:
            done[arrival] = pending()
        except Exception as error:  # a failed request must not end the engine
            results.failed[arrival] = error
    return done
