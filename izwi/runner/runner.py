"""Execute a step: encoders, one forward pass, the codec. Knows no queue and no policy."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from izwi.backends.protocol import ArrayBackend, PendingAudio
from izwi.backends.running import in_backend
from izwi.cache.pages import pages_for
from izwi.cache.tiers import PageStore, TierCosts
from izwi.config import EngineConfig
from izwi.layers import KVSpec
from izwi.model import Alternates, Model, Row, TakesText, step
from izwi.ops.protocol import Array
from izwi.request import Entries, Request
from izwi.runner.batch import run_each
from izwi.runner.budget import MemoryBudget
from izwi.runner.by_track import draw_by_track
from izwi.runner.compilations import Compilations, counted
from izwi.runner.encoded import EncodedCache
from izwi.runner.encoding import Encoders
from izwi.runner.grammars import Grammars
from izwi.runner.in_flight import InFlight
from izwi.runner.lag import begun_tracks, in_place
from izwi.runner.logprobs import Logprobs
from izwi.runner.tiered import TieredPages, TieredStates
from izwi.scheduler.cost import StepCost
from izwi.sequence import Sequence
from izwi.track_log import Entry, Progress
from izwi.tracks import Codec, frame_track

# Rebuilding a position, until steps have been measured.
_REBUILD_S = 1e-4

# What each row of a forward pass gave, or what failed, once the device has finished.
Forward = InFlight["list[Drawn | BaseException]"]
# A stream, and how many of its next frames become sound.
Piece = tuple[Sequence, int]


class Drawn(NamedTuple):
    """What one row of a forward pass gave.

    Attributes:
        entries: Empty if it does not emit.
        logprobs: One an entry, of a request that asks for them; see `Sampler.logprobs`.
    """

    entries: Entries
    logprobs: tuple[Logprobs, ...] = ()


class Runner:
    """One model with its keys and values and its codec state."""

    def __init__(
        self, model: Model, backend: ArrayBackend, config: EngineConfig, budget: MemoryBudget
    ):
        self._model, self._ops = model, backend.ops
        self.backend = backend
        self.grammars = Grammars(model)
        frames = frame_track(model.tracks)
        self.num_codebooks = max(track.num_codebooks for track in model.tracks)
        self._frames = model.tracks[frames or 0]
        self._codec = self._frames.codec
        self._takes_text = model if isinstance(model, TakesText) else None
        self._alternates = model if isinstance(model, Alternates) else None
        if len(model.tracks) > 1 and self._alternates is None:
            raise ValueError("a model with several tracks must say what follows an entry")
        self._sampling = backend.sampling(model.tracks)
        size, kv_dtype, spec = config.page_size, config.kv_dtype, KVSpec.of(model.layers)
        self.page_bytes = backend.page_bytes(spec, size, kv_dtype)
        useful = config.max_running * pages_for(model.max_positions, size)
        self.num_pages = max(1, min(budget.kv_bytes // self.page_bytes, useful))
        self._kv = backend.paged_kv(spec, self.num_pages, size, kv_dtype)
        self.store = PageStore(
            self.page_bytes, TierCosts(_REBUILD_S), budget.page_bytes, budget.disk_bytes
        )
        self.page_tiers = TieredPages(self._kv, self.store)
        specs = self._codec.state if self._codec else {}
        self._arena = backend.state_arena(specs, config.max_running)
        self.states = TieredStates(self._arena, budget.state_bytes)
        self.compilations = Compilations()
        self._graphs = None
        if config.graphs:
            self._graphs = backend.record(model, self._kv, self._arena, self._sampling, config)
        cache = EncodedCache(budget.encoded_bytes)
        self._encoders = Encoders(model, backend, config.max_step_encodes, cache, self._graphs)

    @property
    def works_beside(self) -> bool:
        """Whether launched work runs while the host does something else."""
        return self._graphs is not None

    @property
    def keeps_trailers(self) -> bool:
        """Whether a page's trailer belongs to it, so that a part of a page is of no use."""
        return self._kv.spec.conv is not None

    @property
    def num_compiled(self) -> int:
        """Kernels compiled or loaded and graphs recorded since the start.

        A step during which it grows takes longer than others, so its time is not used.
        """
        return self.compilations.kernels + self.compilations.graphs

    @property
    def frame_s(self) -> float | None:
        """Seconds of sound in one frame, None for a model that writes text."""
        codec = self._codec
        return codec.frame_samples / codec.sample_rate if codec else None

    @property
    def frame_samples(self) -> int:
        """Samples of one frame."""
        return self.codec.frame_samples

    @property
    def codec(self) -> Codec:
        """What turns frames into sound."""
        assert self._codec is not None
        return self._codec

    def begin(self, sequence: Sequence) -> None:
        """Set up the tracks of a new sequence, of a model with several."""
        if self._alternates is not None:
            progress = self._alternates.begin(sequence.request)
            sequence.tracks = begun_tracks(self._model.tracks, progress)

    def following(
        self, request: Request, progress: Progress, drawn: Entry | None
    ) -> Progress | None:
        """What follows an entry, of a model with several tracks."""
        assert self._alternates is not None
        return self._alternates.following(request, progress, drawn)

    def num_ids(self, track: int) -> int:
        """Ids of an entry of a track."""
        return self._model.tracks[track].num_codebooks

    def learn(self, cost: StepCost) -> None:
        """Update measured prices: the cost of rebuilding decides where evicted pages go."""
        if cost.prefill_token_s > 0.0:
            self.store.costs = replace(
                self.store.costs, rebuild_s_per_position=cost.prefill_token_s
            )

    def content_keys(self, sequence: Sequence, start: int, stop: int) -> list[int]:
        """Content keys of positions [start, stop) of prompt and log."""
        return self._model.content_keys(sequence, start, stop)

    def positions_ready(self, sequence: Sequence) -> int:
        """Positions whose inputs are known, for a sequence whose text is still written."""
        assert self._takes_text is not None
        return self._takes_text.positions_ready(sequence)

    def max_entries(self, sequence: Sequence) -> int:
        """Entries after which a sequence ends."""
        if self._takes_text is None or not sequence.request.open_input:
            return sequence.request.max_entries
        return self._takes_text.max_entries(sequence)

    @counted
    @in_backend
    def encode(self, pieces: Seq[tuple[Sequence, int]]) -> list[BaseException | None]:
        """Encode piece i of each sequence into `sequence.encoded[i]`; what failed, per piece.

        Equal pieces run once, in this step and as long as the results are kept.
        """
        return self._encoders.encode(pieces)

    @counted
    @in_backend
    def launch(self, rows: Seq[Row]) -> Forward | None:
        """Launch a forward pass, if the device can run it asynchronously.

        Returns:
            Waits for what `forward` returns; None if nothing was launched.
        """
        if not rows or self._graphs is None or not self._graphs.takes(rows):
            return None
        counts = [row.num_drawn for row in rows]
        try:
            drawn = self._graphs.launch(rows)
        except Exception:  # `forward` tells whose fault it was
            return None
        return drawn.then(partial(self._launched, counts))

    def _launched(
        self, counts: Seq[int], drawn: Callable[[], tuple[list[list[int]], dict[int, Logprobs]]]
    ) -> list[Drawn | BaseException]:
        try:
            return list(self._by_row(counts, *drawn()))
        except Exception as error:  # of the device, not of a request
            return [error for _ in counts]

    @counted
    @in_backend
    def forward(self, rows: Seq[Row]) -> list[Drawn | BaseException]:
        """Run the rows as one forward pass.

        Returns:
            For each row what was drawn, or what failed.
        """
        return run_each(self._run, rows)

    def _run(self, batch: Seq[Row]) -> list[Drawn]:
        counts = [row.num_drawn for row in batch]
        return self._by_row(counts, *self._drawn(batch, counts))

    @staticmethod
    def _by_row(
        counts: Seq[int], entries: list[list[int]], logprobs: dict[int, Logprobs]
    ) -> list[Drawn]:
        if not logprobs and counts.count(1) == len(counts):  # what a step mostly is
            return [Drawn((tuple(entry),)) for entry in entries]
        results, first = [], 0
        for count in counts:
            places = range(first, first + count)
            known = tuple(logprobs[place] for place in places if place in logprobs)
            results.append(Drawn(tuple(tuple(entries[place]) for place in places), known))
            first += count
        return results

    def _drawn(
        self, batch: Seq[Row], counts: Seq[int]
    ) -> tuple[list[list[int]], dict[int, Logprobs]]:
        """Run a batch; so many entries of each row, end to end, and `Sampler.logprobs`."""
        if self._graphs is not None and self._graphs.takes(batch):
            return self._graphs.launch(batch)()
        sequences = [row.sequence for row in batch]
        if counts.count(1) < len(counts):
            repeated = zip(sequences, counts, strict=True)
            sequences = [sequence for sequence, count in repeated for _ in range(count)]
        if self._alternates is not None:
            hidden = self._model.run(self._model.embed(batch), self._kv.context(batch))
            return draw_by_track(self._model, self._ops, batch, hidden, self._sampling)
        if not sequences:  # chunks of prompts: there is nothing to draw from
            self._model.run(self._model.embed(batch), self._kv.context(batch))
            return [], {}
        sampler = self._sampling.of(sequences)
        drawn = step(self._model, self._ops, batch, self._kv.context(batch), sampler.pick)
        return self._ops.numpy(drawn).tolist(), sampler.logprobs()

    @counted
    @in_backend
    def vocode(self, pieces: Seq[tuple[Sequence, int]]) -> list[PendingAudio | BaseException]:
        """Begin to turn the next n frames of each sequence into sound, beside other work.

        Pieces of as many frames run as one batch; each stream's state is gathered before and
        scattered after.

        Returns:
            What waits for each piece's samples, (samples,) float32, or what failed. All of them
            are to be awaited before the next call.
        """
        with self._arena.beside():
            return in_place(self._codec, pieces, self._begin(pieces))

    def _begin(self, pieces: Seq[tuple[Sequence, int]]) -> list[PendingAudio | BaseException]:
        most = max((count for _, count in pieces), default=0)
        if self._graphs is not None and self._graphs.takes_chunks(most):
            return self._each_stream(self._vocode_recorded, pieces)
        sounds: dict[int, PendingAudio | BaseException] = {}
        for frames in sorted({count for _, count in pieces}):
            batch = [piece for piece in pieces if piece[1] == frames]
            made = self._each_stream(self._vocode_equal, batch)
            sounds.update(
                (id(sequence), sound) for (sequence, _), sound in zip(batch, made, strict=True)
            )
        return [sounds[id(sequence)] for sequence, _ in pieces]

    def _each_stream(
        self, run: Callable[[Seq[Piece]], list[PendingAudio]], pieces: Seq[Piece]
    ) -> list[PendingAudio | BaseException]:
        """As `run_each`. A stream whose state a failed batch may have advanced gets it again."""

        def committed(batch: Seq[Piece]) -> list[PendingAudio]:
            for sequence, _ in batch:
                if not self._arena.is_committed(self._row(sequence)):
                    self._remake(sequence)
            sounds = run(batch)
            self._arena.commit([self._row(sequence) for sequence, _ in batch])
            return sounds

        return run_each(committed, pieces)

    def _vocode_recorded(self, pieces: Seq[tuple[Sequence, int]]) -> list[PendingAudio]:
        assert self._graphs is not None
        chunks = []
        for sequence, frames in pieces:
            if sequence.sound.num_vocoded == 0:
                self._warm(sequence)
            first = sequence.sound.num_vocoded
            chunks.append(np.array(sequence.frames[first : first + frames], dtype=np.int64))
        return self._graphs.vocode(chunks, [self._row(sequence) for sequence, _ in pieces])

    def _vocode_equal(self, pieces: Seq[tuple[Sequence, int]]) -> list[PendingAudio]:
        batch, frames = [sequence for sequence, _ in pieces], pieces[0][1]
        codes = np.array(
            [s.frames[s.sound.num_vocoded : s.sound.num_vocoded + frames] for s in batch],
            dtype=np.int64,
        )
        for sequence in batch:
            if sequence.sound.num_vocoded == 0:
                self._warm(sequence)
        rows = [self._row(sequence) for sequence in batch]
        sound, state = self.codec.decode(self._ops.array(codes), self._arena.gather(rows))
        made = self._ops.numpy(sound).astype(np.float32, copy=False)
        self._arena.scatter(rows, state)  # the last that may fail
        return [partial(np.asarray, samples) for samples in made]

    def _warm(self, sequence: Sequence) -> None:
        """Run the codec over the reference clip that an in-context clone continues."""
        row = self._row(sequence)
        warm = self.codec.warm_codes(sequence)
        if warm is not None and warm.shape[0]:
            self._arena.clear(row)  # a batch that failed may have warmed it already
            self._hear(row, warm)

    def _hear(self, row: int, codes: Array) -> None:
        """Run frames, (frames, codebooks), through the codec for the state that they leave."""
        if self._graphs is not None:
            self._graphs.hear(codes, row)
            return
        _, state = self.codec.decode(codes[None], self._arena.gather([row]))
        self._arena.scatter([row], state)

    @counted
    @in_backend
    def rebuild(self, sequences: Seq[Sequence]) -> dict[int, BaseException]:
        """Make the codec states of streams again from their logs; what failed, by arrival.

        The frames go through in the chunks in which they went before, for the same bits.
        """
        if not sequences:
            return {}
        with self._arena.beside():
            return self._rebuild(sequences)

    def _rebuild(self, sequences: Seq[Sequence]) -> dict[int, BaseException]:
        failed: dict[int, BaseException] = {}
        for sequence in sequences:
            try:
                self._remake(sequence)
            except Exception as error:  # the engine must outlive any one request
                failed[sequence.arrival] = error
        return failed

    def _remake(self, sequence: Sequence) -> None:
        """Make a stream's codec state from its log, whatever its row holds."""
        row = self._row(sequence)
        self._arena.clear(row)
        self._warm(sequence)
        log = np.array(sequence.frames[: sequence.sound.num_vocoded], dtype=np.int64)
        codes = self._ops.array(log.reshape(-1, self._frames.num_codebooks))
        done = 0
        for frames in sequence.sound.chunks:
            self._hear(row, codes[done : done + frames])
            done += frames
        self._arena.commit([row])

    @staticmethod
    def _row(sequence: Sequence) -> int:
        assert sequence.sound.state_row is not None
        return sequence.sound.state_row

    def to_host(self, array: Any) -> npt.NDArray[Any]:
        """Copy an encoder's result to the host."""
        return self._ops.numpy(array)
