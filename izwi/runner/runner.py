"""Execute a step: encoders, one forward pass, the codec. Without queues or scheduling policy."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from izwi.backends.budget import MemoryBudget
from izwi.backends.compilations import Compilations, counted
from izwi.backends.in_flight import InFlight
from izwi.backends.protocol import Backend, DrawnEntries, PagedKV, PendingAudio
from izwi.cache.pages import pages_for
from izwi.cache.tiers import PageStore, TierCosts
from izwi.config import EngineConfig
from izwi.model.layers import KVSpec
from izwi.model.protocol import ChoosesTracks, Model, RepeatsPrompts, TakesStreamedText
from izwi.model.step_batch import Row, StepBatch
from izwi.model.tracks import Codec, frame_track
from izwi.ops.protocol import Array
from izwi.request.adapter import salted
from izwi.request.request import EncodeInput, Entries, Request
from izwi.request.sequence import Sequence
from izwi.request.track_log import Entry, TrackProgress
from izwi.runner.adapters import Adapters
from izwi.runner.batch import batch_of, draw, run_each, span_of
from izwi.runner.encoding import EncodedCache, Encoders
from izwi.runner.examples import run_examples
from izwi.runner.rank_orders import StepEncoder
from izwi.runner.ranks import Followers, RankedPages
from izwi.runner.tiered import TieredPages, TieredStates
from izwi.runner.tracks import begun_tracks, draw_by_track, in_place
from izwi.sampling.draws import Logprobs
from izwi.sampling.grammars import Grammars
from izwi.scheduler.cost import StepCost
from izwi.scheduler.work import PlannedRow

P = ParamSpec("P")
R = TypeVar("R")

# Assumed time to recompute a position, until steps have been measured.
_REBUILD_S = 1e-4

# Waits for the device; returns the result of each row of a forward pass, or its error.
Forward = InFlight["list[Drawn | BaseException]"]
# A stream, and how many of its next frames to vocode.
Piece = tuple[Sequence, int]


class Drawn(NamedTuple):
    """The result of one row of a forward pass.

    Attributes:
        entries: Sampled entries; empty if the row does not emit.
        logprobs: One per entry, if the request wants them; see `Sampler.logprobs`.
    """

    entries: Entries
    logprobs: tuple[Logprobs, ...] = ()


def _in_backend(
    work: Callable[Concatenate[Runner, P], R],
) -> Callable[Concatenate[Runner, P], R]:
    """Run a method inside `Backend.running`."""

    @wraps(work)
    def running(self: Runner, /, *arguments: P.args, **named: P.kwargs) -> R:
        with self.backend.running():
            return work(self, *arguments, **named)

    return running


class Runner:
    """Runs one model; owns its KV pages and codec states."""

    def __init__(self, model: Model, backend: Backend, config: EngineConfig, budget: MemoryBudget):
        self._model, self._ops = model, backend.ops
        self.backend = backend
        self.grammars = Grammars(model)
        self.adapters = Adapters(model, backend.ops)
        frames = frame_track(model.tracks)
        self.num_codebooks = max(track.num_codebooks for track in model.tracks)
        self._frames = model.tracks[frames or 0]
        self._codec = self._frames.codec
        self._takes_text = model if isinstance(model, TakesStreamedText) else None
        self._chooses_tracks = model if isinstance(model, ChoosesTracks) else None
        self._repeats_prompts = model if isinstance(model, RepeatsPrompts) else None
        if len(model.tracks) > 1 and self._chooses_tracks is None:
            raise ValueError("a model with several tracks must implement ChoosesTracks")
        self._sampling = backend.sampling(model.tracks)
        size, kv_dtype, spec = config.page_size, config.kv_dtype, KVSpec.from_layers(model.layers)
        self.budget = budget
        self.page_bytes = backend.page_bytes(spec, size, kv_dtype)
        useful = config.max_running * pages_for(model.max_positions, size)
        copies = backend.page_copies if config.graphs else 1
        self.num_pages = max(1, min(budget.device.page_bytes // (copies * self.page_bytes), useful))
        self._kv = backend.paged_kv(spec, self.num_pages, size, kv_dtype)
        self._followers = self._lead()
        ranks = 1 if self._followers is None else self._ops.ranks.count
        self.store = PageStore(
            ranks * self.page_bytes, TierCosts(_REBUILD_S), budget.page_bytes, budget.disk_bytes
        )
        self.page_tiers = TieredPages(
            self._kv
            if self._followers is None
            else RankedPages(self._kv, self._followers, self.page_bytes),
            self.store,
        )
        specs = self._codec.state if self._codec else {}
        self._arena = backend.state_arena(specs, config.max_running)
        self.states = TieredStates(self._arena, budget.state_bytes)
        self.compilations = Compilations()
        with backend.running():
            backend.try_products()
        self._graphs = None
        if config.graphs:
            self._graphs = backend.capture(model, self._kv, self._arena, self._sampling, config)
        self._encoded = EncodedCache(budget.encoded_bytes)
        self._encoders = Encoders(
            model, backend, config.max_step_encodes, self._encoded, self._graphs
        )
        if self._graphs is not None:
            with backend.running():
                run_examples(model, self._kv, self._encoders.encode_plain, self._run_plain)

    def _lead(self) -> Followers | None:
        """Return what tells the other ranks to follow; None if there are none, or this is one."""
        processes = self.backend.followers
        if processes is None:
            return None
        vocabulary = self._model.tracks[0].vocabulary
        number = processes.add_model()
        steps = StepEncoder(number, self._kv.page_size, vocabulary, self.to_host)
        return Followers(processes, number, steps)

    @property
    def kv(self) -> PagedKV:
        """This rank's pages."""
        return self._kv

    @property
    def encoded_bytes(self) -> int:
        """Bytes of the kept results of encoders."""
        return self._encoded.num_bytes

    @property
    def codec_overlaps(self) -> bool:
        """Whether launched work runs asynchronously to the host."""
        return self._graphs is not None

    @property
    def keeps_trailers(self) -> bool:
        """Whether pages have trailers, so that only whole pages can be shared."""
        return self._kv.spec.conv is not None

    @property
    def num_compiled(self) -> int:
        """Kernels compiled or loaded and graphs captured since the start.

        A step during which it grows is slower than others, so its time is not used as a cost.
        """
        return self.compilations.kernels + self.compilations.graphs

    @property
    def frame_s(self) -> float | None:
        """Seconds of audio in one frame; None for a model that writes text."""
        codec = self._codec
        return codec.frame_samples / codec.sample_rate if codec else None

    @property
    def frame_samples(self) -> int:
        """Samples in one frame."""
        return self.codec.frame_samples

    @property
    def codec(self) -> Codec:
        """The codec that decodes frames to audio."""
        assert self._codec is not None
        return self._codec

    def set_up_tracks(self, sequence: Sequence) -> None:
        """Set up the tracks of a new sequence, if the model has several."""
        if self._chooses_tracks is not None:
            progress = self._chooses_tracks.initial_progress(sequence.request)
            sequence.tracks = begun_tracks(self._model.tracks, progress)

    def following(
        self, request: Request, progress: TrackProgress, drawn: Entry | None
    ) -> TrackProgress | None:
        """Return the progress after an entry; a model with one track has always another."""
        if self._chooses_tracks is None:
            return progress
        return self._chooses_tracks.following(request, progress, drawn)

    def num_ids(self, track: int) -> int:
        """Return how many ids an entry of a track has."""
        return self._model.tracks[track].num_codebooks

    def learn(self, cost: StepCost) -> None:
        """Update measured costs: the cost of recomputing decides where evicted pages go."""
        if cost.prefill_token_s > 0.0:
            self.store.costs = replace(
                self.store.costs, rebuild_s_per_position=cost.prefill_token_s
            )

    def content_keys(self, sequence: Sequence, start: int, stop: int) -> list[int]:
        """Return content keys of positions [start, stop) of prompt and log."""
        keys = self._model.content_keys(span_of(sequence, start, stop))
        adapter = sequence.request.adapter
        return keys if adapter is None else salted(keys, adapter)

    def positions_ready(self, sequence: Sequence) -> int:
        """Return how many positions have known inputs, for a sequence with open input."""
        assert self._takes_text is not None
        return self._takes_text.positions_ready(span_of(sequence, 0, sequence.num_positions))

    def max_entries(self, sequence: Sequence) -> int:
        """Return the maximum number of entries of a sequence."""
        if self._takes_text is None or not sequence.request.open_input:
            return sequence.request.max_entries
        return self._takes_text.max_entries(span_of(sequence, 0, sequence.num_positions))

    def prompt_ids(self, request: Request) -> Seq[int] | None:
        """Return ids of the prompt's positions; None if entries must not be drafted.

        Trailers of pages are states, which entries that were guessed wrong would leave behind.
        """
        if self._repeats_prompts is None or self.keeps_trailers:
            return None
        return self._repeats_prompts.prompt_ids(request)

    @counted
    @_in_backend
    def encode(self, pieces: Seq[EncodeInput]) -> list[Any | BaseException]:
        """Encode pieces of audio; return the result of each on the device, or its error.

        Equal pieces are encoded once, within this step and while the result is cached.
        """
        return self._encoders.encode(pieces)

    @counted
    @_in_backend
    def launch(self, rows: Seq[PlannedRow]) -> Forward | None:
        """Launch a forward pass, if the device can run it asynchronously.

        Returns:
            A function that waits for the result of `forward`; None if nothing was launched.
        """
        if not rows or self._graphs is None:
            return None
        try:
            batch = batch_of(rows)
            if not self._graphs.takes(batch):
                return None
            drawn = self.launch_batch(batch)
        except Exception:  # `forward` finds the row that fails
            return None
        return drawn.then(partial(self._launched, batch.counts))

    def launch_batch(self, batch: StepBatch) -> InFlight[DrawnEntries]:
        """Launch a batch that the captured steps take, on all ranks."""
        assert self._graphs is not None
        with self._on_all_ranks(batch, launched=True):
            return self._graphs.launch(batch)

    def _is_adapted(self, rows: Seq[Row]) -> bool:
        """Return whether any row has an adapter."""
        return self.adapters.are_used and any(row.adapter is not None for row in rows)

    def _on_all_ranks(self, batch: StepBatch, *, launched: bool) -> AbstractContextManager[None]:
        """Let the other ranks, if there are any, run a batch beside the work inside."""
        if self._followers is None:
            return nullcontext()
        return self._followers.running(batch, launched=launched)

    def _launched(
        self, counts: Seq[int], drawn: Callable[[], tuple[list[list[int]], dict[int, Logprobs]]]
    ) -> list[Drawn | BaseException]:
        try:
            return list(self._by_row(counts, *drawn()))
        except Exception as error:  # an error of the device, not of a request
            return [error for _ in counts]

    @counted
    @_in_backend
    def forward(self, rows: Seq[PlannedRow]) -> list[Drawn | BaseException]:
        """Run the rows as one forward pass.

        Returns:
            For each row the sampled entries, or an error.
        """
        return run_each(self._run, rows)

    def _run(self, rows: Seq[PlannedRow]) -> list[Drawn]:
        batch = batch_of(rows)
        return self._by_row(batch.counts, *self.run(batch))

    @staticmethod
    def _by_row(
        counts: Seq[int], entries: list[list[int]], logprobs: dict[int, Logprobs]
    ) -> list[Drawn]:
        if not logprobs and counts.count(1) == len(counts):  # the common case
            return [Drawn((tuple(entry),)) for entry in entries]
        results, first = [], 0
        for count in counts:
            places = range(first, first + count)
            known = tuple(logprobs[place] for place in places if place in logprobs)
            results.append(Drawn(tuple(tuple(entries[place]) for place in places), known))
            first += count
        return results

    def run(self, batch: StepBatch) -> tuple[list[list[int]], dict[int, Logprobs]]:
        """Run a batch over these pages, and those of other ranks, and wait for its entries."""
        if self._graphs is not None and self._graphs.takes(batch):
            with self._on_all_ranks(batch, launched=False):
                return self._graphs.launch(batch)()
        # before other ranks hear of it, so that they never wait for a row that cannot be embedded
        x = self._model.embed(batch.rows)
        with self._on_all_ranks(batch, launched=False):
            return self._run_embedded(batch, x)

    def _run_plain(self, rows: Seq[Row]) -> Array:
        return self._model.run(self._model.embed(rows), self._kv.context(rows))

    def _run_embedded(self, batch: StepBatch, x: Array) -> DrawnEntries:
        context = self._kv.context(batch.rows)
        if self._is_adapted(batch.rows):
            hidden = self.adapters.run(batch.rows, x, context)
        else:
            hidden = self._model.run(x, context)
        # what is drawn is prepared while a device runs the pass
        draws = batch.draws
        if not draws:  # chunks of prompts: nothing to sample
            return [], {}
        if self._chooses_tracks is not None:
            return draw_by_track(self._model, self._ops, batch, hidden, self._sampling)
        sampler = self._sampling.for_step(draws)
        drawn = draw(self._model, self._ops, batch, hidden, len(draws), sampler.pick)
        return self._ops.numpy(drawn).tolist(), sampler.logprobs()

    @counted
    @_in_backend
    def vocode(self, pieces: Seq[tuple[Sequence, int]]) -> list[PendingAudio | BaseException]:
        """Start to decode the next n frames of each sequence to audio, concurrently to other work.

        Pieces of equal length run as one batch; each stream's state is gathered before and
        scattered after.

        Returns:
            For each piece a function that waits for its samples, (samples,) float32, or an error.
            Wait for all of them before the next call.
        """
        with self._arena.side_stream():
            return in_place(self._codec, pieces, self._launch_vocoding(pieces))

    def _launch_vocoding(
        self, pieces: Seq[tuple[Sequence, int]]
    ) -> list[PendingAudio | BaseException]:
        most = max((count for _, count in pieces), default=0)
        if self._graphs is not None and self._graphs.takes_chunks(most):
            return self._each_stream(self._vocode_captured, pieces)
        pending: dict[int, PendingAudio | BaseException] = {}
        for frames in sorted({count for _, count in pieces}):
            batch = [piece for piece in pieces if piece[1] == frames]
            made = self._each_stream(self._vocode_equal, batch)
            pending.update(
                (id(sequence), audio) for (sequence, _), audio in zip(batch, made, strict=True)
            )
        return [pending[id(sequence)] for sequence, _ in pieces]

    def _each_stream(
        self, run: Callable[[Seq[Piece]], list[PendingAudio]], pieces: Seq[Piece]
    ) -> list[PendingAudio | BaseException]:
        """Like `run_each`; first rebuild the state of streams that a failed batch overwrote."""

        def committed(batch: Seq[Piece]) -> list[PendingAudio]:
            for sequence, _ in batch:
                if not self._arena.is_committed(self._row(sequence)):
                    self._remake(sequence)
            pending = run(batch)
            self._arena.commit([self._row(sequence) for sequence, _ in batch])
            return pending

        return run_each(committed, pieces)

    def _vocode_captured(self, pieces: Seq[tuple[Sequence, int]]) -> list[PendingAudio]:
        assert self._graphs is not None
        chunks = []
        for sequence, frames in pieces:
            if sequence.audio.num_vocoded == 0:
                self._warm(sequence)
            first = sequence.audio.num_vocoded
            chunks.append(np.array(sequence.frames[first : first + frames], dtype=np.int64))
        return self._graphs.vocode(chunks, [self._row(sequence) for sequence, _ in pieces])

    def _vocode_equal(self, pieces: Seq[tuple[Sequence, int]]) -> list[PendingAudio]:
        batch, frames = [sequence for sequence, _ in pieces], pieces[0][1]
        codes = np.array(
            [s.frames[s.audio.num_vocoded : s.audio.num_vocoded + frames] for s in batch],
            dtype=np.int64,
        )
        for sequence in batch:
            if sequence.audio.num_vocoded == 0:
                self._warm(sequence)
        rows = [self._row(sequence) for sequence in batch]
        audio, state = self.codec.decode(self._ops.array(codes), self._arena.gather(rows))
        made = self._ops.numpy(audio).astype(np.float32, copy=False)
        self._arena.scatter(rows, state)  # the last operation that may fail
        return [partial(np.asarray, samples) for samples in made]

    def _warm(self, sequence: Sequence) -> None:
        """Run the codec over the reference clip that an in-context clone continues."""
        row = self._row(sequence)
        warm = self.codec.warm_codes(span_of(sequence, 0, sequence.num_prompt))
        if warm is not None:
            self._arena.clear(row)  # a batch that failed may have warmed it already
            self._advance_codec(row, warm)

    def _advance_codec(self, row: int, codes: Array) -> None:
        """Decode frames, (frames, codebooks), only to advance the codec state."""
        if self._graphs is not None:
            self._graphs.advance_codec(codes, row)
            return
        _, state = self.codec.decode(codes[None], self._arena.gather([row]))
        self._arena.scatter([row], state)

    @counted
    @_in_backend
    def rebuild(self, sequences: Seq[Sequence]) -> dict[int, BaseException]:
        """Rebuild the codec states of streams from their logs; return errors by arrival.

        Frames are decoded in the same chunks as before, so that the state is bit-identical.
        """
        if not sequences:
            return {}
        with self._arena.side_stream():
            return self._rebuild(sequences)

    def _rebuild(self, sequences: Seq[Sequence]) -> dict[int, BaseException]:
        failed: dict[int, BaseException] = {}
        for sequence in sequences:
            try:
                self._remake(sequence)
            except Exception as error:  # no request may stop the engine
                failed[sequence.arrival] = error
        return failed

    def _remake(self, sequence: Sequence) -> None:
        """Rebuild a stream's codec state from its log."""
        row = self._row(sequence)
        self._arena.clear(row)
        self._warm(sequence)
        log = np.array(sequence.frames[: sequence.audio.num_vocoded], dtype=np.int64)
        codes = self._ops.array(log.reshape(-1, self._frames.num_codebooks))
        done = 0
        for frames in sequence.audio.chunks:
            self._advance_codec(row, codes[done : done + frames])
            done += frames
        self._arena.commit([row])

    @staticmethod
    def _row(sequence: Sequence) -> int:
        assert sequence.audio.state_row is not None
        return sequence.audio.state_row

    def as_error(self, failure: BaseException) -> BaseException:
        """Return the error that a failed request ends with; see `Backend.request_error`."""
        return self.backend.request_error(failure)

    def to_host(self, array: Any) -> npt.NDArray[Any]:
        """Copy an encoder's result to the host."""
        return self._ops.numpy(array)
