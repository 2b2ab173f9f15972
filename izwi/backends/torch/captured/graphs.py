"""All captured graphs of one model, and how a step runs through them."""

from __future__ import annotations

import gc
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from izwi.backends.in_flight import InFlight
from izwi.backends.memory_plan import GraphBytes, driver_bytes
from izwi.backends.protocol import DrawnEntries, PendingAudio
from izwi.backends.torch.captured.capturer import DeviceRoom, GraphCapturer, GraphPool
from izwi.backends.torch.captured.codec_graphs import CodecGraphs
from izwi.backends.torch.captured.compiling import Rehearsal, rehearse, watch_triton
from izwi.backends.torch.captured.decode_graphs import FEW_KEYS, DecodeGraphs, Part
from izwi.backends.torch.captured.encoder_graphs import EncoderGraphs
from izwi.backends.torch.captured.prompt_graphs import PromptGraphs
from izwi.backends.torch.kv import PagedKV
from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.sampler import Suppressed
from izwi.backends.torch.state import StateArena
from izwi.backends.torch.triton.attention_decode import takes_heads
from izwi.config import EngineConfig
from izwi.model.adapters import RowUpdates, TakesAdapters
from izwi.model.encoders import EncodesPadded
from izwi.model.protocol import Capturable, CapturableModel, CapturableTracks, Model
from izwi.model.step_batch import Row, StepBatch, places_drawn
from izwi.model.tracks import frame_track
from izwi.request.request import EncodeInput
from izwi.sampling.draws import logprobs_of

_entry_of = attrgetter("key", "step")  # of a row that draws one


@dataclass(frozen=True, slots=True, eq=False)
class ModelArrays:
    """What a model's graphs read and write.

    Attributes:
        kv: Its pages.
        arena: Codec states of its streams.
        suppressed: Ids of each track that are never drawn.
    """

    kv: PagedKV
    arena: StateArena
    suppressed: Seq[Suppressed | None]


@dataclass(frozen=True, slots=True, eq=False)
class Capturers:
    """What captures the graphs of all models of a device.

    Attributes:
        steps: For encoders, prompts and decode steps, of which one runs at a time.
        codec: For the codecs: they run beside the next step, which has priority.
    """

    steps: GraphCapturer
    codec: GraphCapturer

    @staticmethod
    def on(device: torch.device, room: DeviceRoom) -> Capturers:
        """Create both, with a pool each on CUDA."""
        if device.type != "cuda":
            return Capturers(GraphCapturer(device), GraphCapturer(device))
        pools = GraphPool(device, priority=-1), GraphPool(device)
        return Capturers(*(GraphCapturer(device, pool, room) for pool in pools))

    def prime(self, graphs: GraphBytes) -> None:
        """Prepare for graphs with these working sets."""
        self.steps.prime(graphs.steps)
        self.codec.prime(graphs.codec)


def rehearsed(model: Model, arrays: ModelArrays, ops: TorchOps, config: EngineConfig) -> GraphBytes:
    """Run everything that `Graphs.of` captures, with kernels compiled only, and measure its memory.

    `arrays.kv` may be smaller than it says, because no kernel reads it.
    """
    if ops.device.type != "cuda":
        return GraphBytes()
    watch_triton()
    steps, codec = Rehearsal(ops.device), Rehearsal(ops.device)
    before = torch.cuda.memory_allocated(ops.device)
    exchanged = ops.ranks.num_exchanges
    made: list[Graphs] = []
    capturers = Capturers(steps, codec)
    rehearse(lambda: made.append(Graphs.from_model(model, arrays, ops, config, capturers)))
    buffers = torch.cuda.memory_allocated(ops.device) - before
    made.clear()
    gc.collect()  # free reference cycles
    torch.cuda.empty_cache()
    num_graphs = steps.num_graphs + codec.num_graphs
    num_sums = ops.ranks.num_exchanges - exchanged
    driver = driver_bytes(len(model.layers), num_graphs, num_sums)
    return GraphBytes(steps.peak_bytes, codec.peak_bytes, buffers, driver)


@dataclass(frozen=True, slots=True, eq=False)
class Graphs:
    """Captured steps of one model.

    Attributes:
        decodes: None if captured attention cannot read the model's keys and values, or if entries
            are drawn at output positions, so that there are no decode steps.
        prompts: Also None if attention runs in torch, where each position would gather its keys.
        codec: None for a model that writes text.
        encoders: None for a model without an encoder that can be captured.
    """

    model: Model
    capturable: CapturableModel | None
    kv: PagedKV
    ops: TorchOps
    decodes: DecodeGraphs | None
    prompts: PromptGraphs | None
    codec: CodecGraphs | None
    encoders: EncoderGraphs | None

    @staticmethod
    def from_model(
        model: Model,
        arrays: ModelArrays,
        ops: TorchOps,
        config: EngineConfig,
        capturers: Capturers,
    ) -> Graphs:
        """Capture everything that requests can need, so that none of them waits for it."""
        watch_triton()
        kv = arrays.kv
        capturable = _capturable(model, kv, reads_tables=ops.reads_tables)
        encoders = _encoders(model, ops, config, capturers.steps)
        decodes = prompts = None
        if capturable is not None:
            suppressed = arrays.suppressed
            decodes = _decodes(capturable, kv, suppressed, ops, config, capturers.steps)
            prompts = _prompts(capturable, kv, ops, config, capturers.steps)
        codec = _codec(model, arrays.arena, config, capturers.codec)
        return Graphs(model, capturable, kv, ops, decodes, prompts, codec, encoders)

    def encodes(self, piece: EncodeInput) -> bool:
        """Return whether a piece of audio can be encoded with a graph."""
        return self.encoders is not None and self.encoders.takes(piece)

    def encode(self, pieces: Seq[EncodeInput]) -> list[Tensor]:
        """Encode pieces of audio; see `EncoderGraphs.encode`."""
        assert self.encoders is not None
        return self.encoders.encode(pieces)

    def takes(self, batch: StepBatch) -> bool:
        """Return whether these rows can be run, and their entries drawn, with graphs."""
        return self.decodes is not None and self.decodes.takes(batch)

    def launch(self, batch: StepBatch) -> InFlight[DrawnEntries]:
        """Launch the rows.

        Prompts run separately, because they would slow down every decode. Only their last positions
        run with the decodes, if there are any: drawing for one more row costs no extra time. Rows
        that draw several entries run with the prompts; their positions attend to each other.

        The previous launch may still be in flight: its entries are read on the device.

        Returns:
            Waits for the entries of the rows, in order, and for `Sampler.logprobs`.
        """
        assert self.decodes is not None
        assert self.capturable is not None
        self.decodes.begin_step()
        decodes: list[Row] = []
        others: list[Row] = []
        for row in batch.rows:
            (decodes if row.decodes else others).append(row)
        last = [row.part(row.stop - 1, row.stop) for row in others if _draws_last(row)]
        together = self.decodes.in_place([*decodes, *last]) if decodes else []
        inputs = self.capturable.inputs(together) if together else None
        if inputs is not None:
            others = [
                row.part(row.start, row.stop - 1) if _draws_last(row) else row for row in others
            ]
        elif decodes:
            together = decodes
            inputs = self.capturable.inputs(decodes)
            assert inputs is not None  # what was emitted is ids
        parts = self._from_states([row for row in others if row.stop > row.start])
        if inputs is not None:
            parts += self.decodes.decode(inputs, together)
        return InFlight(partial(_in_order, parts, batch.draws), [part.copy for part in parts])

    def _from_states(self, rows: Seq[Row]) -> list[Part]:
        """Run rows, and draw from the states of their positions."""
        assert self.decodes is not None
        if not rows:
            return []
        hidden, places = self._run(rows), places_drawn(rows)
        if not len(places):
            return []
        return self.decodes.draw(
            self.ops.take(hidden, self.ops.array(places)), StepBatch(tuple(rows)).draws
        )

    def _run(self, rows: Seq[Row]) -> Tensor:
        """Return hidden states of the rows' positions, (positions, width)."""
        model = self.model
        if isinstance(model, TakesAdapters) and any(row.adapter is not None for row in rows):
            updates = RowUpdates(self.ops, rows)
            return cast(
                Tensor, model.adapted.run(model.embed(rows), self.kv.context(rows), updates)
            )
        if self.prompts is not None and self.prompts.takes(rows):
            return self.prompts.run(rows)
        return cast(Tensor, model.run(model.embed(rows), self.kv.context(rows)))

    def takes_chunks(self, most_frames: int) -> bool:
        """Return whether chunks of up to this many frames can be decoded with graphs."""
        return self.codec is not None and self.codec.takes(most_frames)

    def advance_codec(self, codes: Tensor, row: int) -> None:
        """Decode frames only to advance the codec state; see `CodecGraphs.advance_codec`."""
        assert self.codec is not None
        self.codec.advance_codec(codes, row)

    def vocode(self, chunks: Seq[npt.NDArray[np.int64]], rows: Seq[int]) -> list[PendingAudio]:
        """Start to decode the next frames of streams; see `CodecGraphs.vocode`."""
        assert self.codec is not None
        return self.codec.vocode(chunks, rows)


def _draws_last(row: Row) -> bool:
    """Return whether a row draws one entry, from its last position."""
    return len(row.drawn) == 1 and row.drawn[0] == row.stop - 1


def _in_order(parts: Seq[Part], draws: Seq[Row]) -> DrawnEntries:
    """Wait for the entries of all parts, and sort them as `StepBatch.draws`."""
    entries: dict[tuple[int, int], list[int]] = {}
    likely: dict[tuple[int, int], float | list[float]] = {}
    for rows, copy in parts:
        keys = list(map(_entry_of, rows))
        drawn, *logprobs = copy.wait()
        entries.update(zip(keys, drawn.tolist(), strict=True))
        for found in logprobs:
            likely.update(zip(keys, found.tolist(), strict=True))
    asking = ((n, row) for n, row in enumerate(draws) if row.request.logprobs)
    return (
        [entries[entry] for entry in map(_entry_of, draws)],
        {n: logprobs_of(row.request, likely[_entry_of(row)]) for n, row in asking},
    )


def _encoders(
    model: Model, ops: TorchOps, config: EngineConfig, capturer: GraphCapturer
) -> EncoderGraphs | None:
    if not isinstance(model, EncodesPadded) or not model.padded_encoders:
        return None
    most = config.max_step_encodes
    encoders = EncoderGraphs(model.padded_encoders, capturer, most, ops.device, ops.dtype)
    if capturer.captures:
        encoders.warm_up()
    return encoders


def _decodes(
    model: CapturableModel,
    kv: PagedKV,
    suppressed: Seq[Suppressed | None],
    ops: TorchOps,
    config: EngineConfig,
    capturer: GraphCapturer,
) -> DecodeGraphs:
    # torch would gather as many keys as a sequence can come to have
    most_keys = model.max_positions if ops.reads_tables else FEW_KEYS
    decodes = DecodeGraphs(model, kv, capturer, config.max_running, suppressed, most_keys)
    if capturer.captures:
        decodes.warm_up(adapted=config.adapters)
    return decodes


def _prompts(
    model: CapturableModel,
    kv: PagedKV,
    ops: TorchOps,
    config: EngineConfig,
    capturer: GraphCapturer,
) -> PromptGraphs | None:
    if not ops.reads_tables:
        return None
    prompts = PromptGraphs(model, kv, capturer, config.max_running)
    if capturer.captures:
        prompts.warm_up()
    return prompts


def _codec(
    model: Model, arena: StateArena, config: EngineConfig, capturer: GraphCapturer
) -> CodecGraphs | None:
    frames = frame_track(model.tracks)
    if frames is None:
        return None
    most, track = min(config.max_running, config.max_step_vocodes), model.tracks[frames]
    codec = CodecGraphs(track, arena, capturer, most, config.chunk_ramp, arena.device)
    if capturer.captures:
        with arena.side_stream():
            codec.warm_up()
    return codec


def _capturable(model: Model, kv: PagedKV, *, reads_tables: bool) -> CapturableModel | None:
    """Return the model if its decode steps can be captured, else None.

    Not supported are attention windows, and several tracks with attention in torch.
    """
    plain = kv.plain is not None and takes_heads(kv.spec.head_dim) and not kv.spec.windows
    repeats = not model.tracks[0].in_prompt
    if len(model.tracks) > 1:
        repeats = isinstance(model, CapturableTracks) and reads_tables
    return model if plain and repeats and isinstance(model, Capturable) else None
