"""One model in the loop: its queues, its runner, and what happens to the results of a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from itertools import compress
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from izwi.cache.memory import PagedMemory
from izwi.config import EngineConfig
from izwi.errors import Overloaded
from izwi.log import Log
from izwi.model import Model, Row
from izwi.ops.torch_ops import TorchOps
from izwi.request import Chunk, Entries, Float32, Phase, Reason, Sequence
from izwi.runner.budget import MemoryBudget
from izwi.runner.codec_graphs import Sound
from izwi.runner.runner import Drawn, Runner
from izwi.scheduler.cost import StepWork
from izwi.scheduler.playback import frames_to_vocode
from izwi.scheduler.scheduler import Scheduler
from izwi.scheduler.work import Work
from izwi.under_way import Launched, Results

# How often, in steps, prices are taken over and the queue is searched for who waits too long.
_CHECK_EVERY = 32
# A step is launched when this share of the time is left that the one before is predicted to take.
# Of what the host is late, prices then learn less than there was, so that they come down again.
_MARGIN = 0.25
_LEAD_DECAY = 0.95


class Lane:
    """One model: its queues and its runner."""

    def __init__(
        self, scheduler: Scheduler, runner: Runner, config: EngineConfig, clock: Callable[[], float]
    ):
        self.scheduler, self.runner = scheduler, runner
        self._config, self._clock = config, clock
        self._under_way: deque[Launched] = deque()
        self._sounding: dict[int, tuple[Sequence, Sound]] = {}  # by arrival
        self._waits = True
        self._ended_s = -inf  # when the last step under way did
        self._planned_s = 0.0  # when planning the last step began
        self._lead_s = 0.0  # what planning and launching takes of late
        self._nothing = np.zeros((0, runner.num_codebooks), dtype=np.int64)

    @staticmethod
    def of(
        model: Model,
        ops: TorchOps,
        config: EngineConfig,
        budget: MemoryBudget,
        clock: Callable[[], float],
    ) -> Lane:
        """Set up a model with its share of the memory."""
        runner = Runner(model, ops, config, budget)
        memory = PagedMemory(runner.num_pages, config.page_size, runner.page_tiers)
        return Lane(Scheduler(config, memory, runner.states, runner), runner, config, clock)

    @property
    def load(self) -> dict[str, float]:
        """Sequences, pages and what happened to them: the keys of `izwi.metrics.FIGURES`."""
        scheduler, memory = self.scheduler, self.scheduler.memory
        counts = scheduler.counts
        return {
            "running": scheduler.num_running,
            "waiting": scheduler.num_waiting,
            "paused": scheduler.num_paused,
            "pages": memory.num_pages,
            "free_pages": memory.num_free,
            "available_pages": memory.num_available,
            "page_bytes": self.runner.page_bytes,
            "host_pages": self.runner.store.num_host,
            "disk_pages": self.runner.store.num_disk,
            "step_seconds": scheduler.cost.cost.seconds(StepWork(scheduler.num_running)),
            "prefix_positions_asked": memory.positions_asked,
            "prefix_positions_hit": memory.positions_hit,
            "pages_demoted": memory.num_demoted,
            "pages_promoted": memory.num_promoted,
            "steps": counts.steps,
            "preempted": counts.preempted,
            "pauses": counts.paused,
            "resumes": counts.resumed,
            "refused": counts.refused,
            "shadow_steps": counts.shadow_steps,
            "shadow_differences": sum(counts.shadow),
        }

    def schedule(self, now_s: float) -> Work:
        """Decide what this step runs."""
        self._planned_s = now_s
        work = self.scheduler.schedule(now_s)
        self._waits = not (work.encode or work.forward or work.vocode)
        return work

    @property
    def has_work(self) -> bool:
        """Whether anything runs or wants to."""
        return self.scheduler.has_work or bool(self._under_way)

    @property
    def is_under_way(self) -> bool:
        """Whether a device works on what nobody has waited for."""
        return bool(self._under_way)

    @property
    def rests(self) -> bool:
        """Whether the last step ran nothing and left nothing, because all waits for others."""
        return self._waits and not self._sounding and not self._under_way

    def launch(self, work: Work) -> None:
        """Run the encoders, and launch the forward pass; `results` waits for it."""
        if self._waits and not work.rebuild and self._under_way:
            return  # there is nothing to do before these have ended
        began_s = self._clock()
        failed = self.runner.rebuild(work.rebuild)
        for (sequence, _), error in zip(work.encode, self.runner.encode(work.encode), strict=True):
            if error is not None:
                failed[sequence.arrival] = error
        rows: Seq[Row] = work.forward
        if failed:
            rows = [row for row in rows if row.sequence.arrival not in failed]
        forward = self.runner.launch(rows)
        launched = Launched(work, failed, rows, forward, began_s)
        if forward is not None:
            launched.foretell(self._limit, self._config.chunk_ramp)
        now_s = self._clock()
        launched.seconds = now_s - began_s
        self._lead_s = max(now_s - self._planned_s, _LEAD_DECAY * self._lead_s)
        self._under_way.append(launched)

    @property
    def spare_s(self) -> float:
        """Seconds for which the next step can still be planned in time; not above 0: it is time.

        Who comes before then has a part in it, and need not wait for one step more.
        """
        if not self._under_way or not self._stays():
            return 0.0
        launched = self._under_way[0]
        runs_s = self.scheduler.cost.cost.seconds(launched.size)
        began_s = max(launched.began_s, self._ended_s)
        return began_s + (1.0 - _MARGIN) * runs_s - self._lead_s - self._clock()

    def results(self) -> Iterator[Results]:
        """Wait for the steps under way, or run what nothing could be launched of.

        What a device runs by itself stays under way if it is the newest: the next step is launched
        behind it before anybody waits, so that the device need not. Results must be processed
        before the next ones are taken.
        """
        while self._under_way and (self._waits or not self._stays()):
            yield self._results(self._under_way.popleft())

    def _stays(self) -> bool:
        return len(self._under_way) == 1 and self._under_way[0].forward is not None

    def _results(self, launched: Launched) -> Results:
        began_s = self._clock()
        results = Results(launched.work, launched.failed)
        fresh = launched.fresh()
        rows = list(compress(launched.rows, fresh))
        if launched.forward is None:
            every = self.runner.forward(rows)
            results.seconds = launched.seconds + self._clock() - began_s
        else:
            every = list(compress(launched.forward(), fresh))
            launched.arrived(rows, every)
            ended_s = self._clock()  # the device began when it had ended the step before
            results.seconds = ended_s - max(launched.began_s, self._ended_s)
            self._ended_s = ended_s
        for row, drawn in zip(rows, every, strict=True):
            if isinstance(drawn, BaseException):
                results.failed[row.sequence.arrival] = drawn
            else:
                results.drawn.append((row.sequence, drawn, row.stop))
        return results

    def process(self, results: Results, now_s: float) -> list[Chunk]:
        """Grow the logs, begin the sound that is due, finish, free, and say what happened.

        A listener's first sound is waited for. Where a device can make sound beside the next
        step, later sound is, and leaves with that step's results.
        """
        fresh = set[int]()
        writes = self.runner.frame_s is None
        for sequence, drawn, stop in results.drawn:
            self.scheduler.computed(sequence, stop)
            if drawn.entries:
                sequence.phase = Phase.DECODE
                if self._append(sequence, drawn) and writes:
                    fresh.add(sequence.arrival)
        begun = [sequence for sequence, _ in self._sounding.values()]
        earlier = [sequence for sequence in begun if sequence.phase is not Phase.FINISHED]
        sounds = self._sounds(results)
        chunks: list[Chunk] = []
        for sequence in dict.fromkeys([*results.work.sequences(), *earlier]):
            if sequence.phase is Phase.FINISHED:  # it left while the step was under way
                continue
            told, sound = sequence.arrival in fresh, sounds.get(sequence.arrival)
            failure = results.failed.get(sequence.arrival)
            if sound is not None or told:
                frames = 0 if sound is None else len(sound) // self.runner.frame_samples
                self.scheduler.heard(sequence, frames, now_s)
            if failure is not None:
                chunks.append(self.finish(sequence, Reason.ERROR, error=failure))
            elif (sequence.ended or sequence.request.encode_only) and self._is_done(sequence):
                assert sequence.reason is not None
                chunks.append(self.finish(sequence, sequence.reason, sound))
            elif told or sound is not None:
                chunks.append(self._chunk(sequence, sound))
        return chunks + self._check(now_s)

    def restore(self, sequence: Sequence, log: Log) -> None:
        """Set a new sequence to where another engine's log of its request ends."""
        log.put_into(sequence, self.runner.frame_samples if self.runner.frame_s else 0)
        if sequence.emitted and len(sequence.emitted) >= self._limit(sequence):
            sequence.emitted.pop()  # drawn again, the same, it ends the sequence
            sequence.num_vocoded = min(sequence.num_vocoded, len(sequence.emitted))

    def finish(
        self,
        sequence: Sequence,
        reason: Reason,
        sound: Float32 | None = None,
        error: BaseException | None = None,
    ) -> Chunk:
        """End a request, free what it holds, and make its last chunk."""
        encoded: tuple[npt.NDArray[Any], ...] = ()
        if sequence.request.encode_only and reason is Reason.STOP:
            encoded = tuple(self.runner.to_host(result) for result in sequence.encoded)
        self.scheduler.finish(sequence, reason)
        return self._chunk(sequence, sound, reason=reason, error=error, encoded=encoded)

    def close(self) -> None:
        """Give back what is not freed by itself: the tiers below the device. Nothing may run."""
        self.runner.store.close()

    def _append(self, sequence: Sequence, drawn: Drawn) -> Entries:
        """Put entries into the log; returns them, without a stop id, which is not emitted."""
        request, entries = sequence.request, drawn.entries
        stops = entries[-1][0] in request.stop_ids
        kept = entries[:-1] if stops else entries
        sequence.emitted += kept
        if drawn.logprobs:
            sequence.logprobs += drawn.logprobs[: len(kept)]
        if stops:
            self.scheduler.end(sequence, Reason.STOP)
        elif len(sequence.emitted) >= self._limit(sequence):
            self.scheduler.end(sequence, Reason.LENGTH)
        return kept

    def _limit(self, sequence: Sequence) -> int:
        """Entries after which a sequence ends."""
        if sequence.limit is not None:
            return sequence.limit
        limit, request = self.runner.max_entries(sequence), sequence.request
        if not request.marks:  # entries take positions
            limit = min(limit, self.scheduler.capacity - sequence.num_prompt)
        if not request.open_input:  # else it grows with what is written
            sequence.limit = limit
        return limit

    def _sounds(self, results: Results) -> dict[int, Float32]:
        """Begin the chunks of sound that are due; those that are there, or waited for."""
        began_s = self._clock()
        sounds = _awaited(self._sounding, results)  # first, since their buffers are used again
        self._sounding = {}
        first: dict[int, tuple[Sequence, Sound]] = {}
        due = self._due(results)
        for (sequence, frames), sound in zip(due, self.runner.vocode(due), strict=True):
            if isinstance(sound, BaseException):
                results.failed[sequence.arrival] = sound
                continue
            waits = sequence.num_chunks == 0 or not self.runner.works_beside
            (first if waits else self._sounding)[sequence.arrival] = sequence, sound
            sequence.num_vocoded += frames
            sequence.num_chunks += 1
        sounds |= _awaited(first, results)
        seconds = results.seconds
        if not self._under_way:
            seconds += self._clock() - began_s
        work = results.work
        lengths = [row.stop - row.start for row in work.forward]
        ran = StepWork.of(lengths, len(work.encode), [frames for _, frames in due])
        self.scheduler.cost.add(ran, seconds)
        return sounds

    def _due(self, results: Results) -> list[tuple[Sequence, int]]:
        """Chunks of sound that were planned and have their frames, and how many each."""
        due = []
        for sequence in results.work.vocode:
            if not self.scheduler.runs(sequence):  # it was taken out since
                continue
            frames = frames_to_vocode(
                num_frames=len(sequence.emitted),
                num_vocoded=sequence.num_vocoded,
                num_chunks=sequence.num_chunks,
                ended=sequence.ended,
                ramp=self._config.chunk_ramp,
            )
            if frames and sequence.arrival not in results.failed:
                due.append((sequence, frames))
        return due

    def _is_done(self, sequence: Sequence) -> bool:
        """Whether the last entry, and its sound, are out."""
        if sequence.request.encode_only:
            sequence.reason = Reason.STOP
            return all(result is not None for result in sequence.encoded)
        if sequence.arrival in self._sounding:
            return False
        silent = self.runner.frame_s is None or sequence.num_vocoded == len(sequence.emitted)
        return sequence.ended and silent

    def _check(self, now_s: float) -> list[Chunk]:
        """Now and then: learn prices, and refuse who could not start in time."""
        if self.scheduler.counts.steps % _CHECK_EVERY:
            return []
        self.runner.learn(self.scheduler.cost.cost)
        waited = f"no room to start within {self._config.max_wait_s:.0f} s"
        refused = self.scheduler.overdue(now_s)
        self.scheduler.counts.refused += len(refused)
        return [self.finish(s, Reason.ERROR, error=Overloaded(waited)) for s in refused]

    def _chunk(self, sequence: Sequence, sound: Float32 | None, **rest: Any) -> Chunk:
        """What its reader has not been told: frames come with their sound, text at once."""
        first = sequence.num_told
        new = sequence.emitted[first:]
        sequence.num_told = len(sequence.emitted)
        log = np.array(new, dtype=np.int64) if new else self._nothing
        if sequence.request.logprobs:
            rest["logprobs"] = np.array(sequence.logprobs[first:], dtype=np.float32)
        return Chunk(sequence.request.request_id, log, sound, **rest)


def _awaited(begun: dict[int, tuple[Sequence, Sound]], results: Results) -> dict[int, Float32]:
    """Wait for sounds, by arrival; what failed is noted in the results."""
    sounds: dict[int, Float32] = {}
    for arrival, (_, sound) in begun.items():
        try:
            sounds[arrival] = sound()
        except Exception as error:  # the engine must outlive any one request
            results.failed[arrival] = error
    return sounds
