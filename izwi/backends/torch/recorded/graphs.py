"""All recorded graphs of one model, and how a step runs through them."""

from __future__ import annotations

import gc
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from izwi.backends.in_flight import InFlight
from izwi.backends.memory_plan import GraphBytes
from izwi.backends.protocol import PendingAudio
from izwi.backends.torch.kv import PagedKV
from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.recorded.codec_graphs import CodecGraphs
from izwi.backends.torch.recorded.compiling import Rehearsal, rehearse, watch_triton
from izwi.backends.torch.recorded.decode_graphs import FEW_KEYS, DecodeGraphs, Part
from izwi.backends.torch.recorded.encoder_graphs import EncoderGraphs
from izwi.backends.torch.recorded.prompt_graphs import PromptGraphs
from izwi.backends.torch.recorded.recorder import GraphPool, GraphRecorder
from izwi.backends.torch.recorded.tracked_graphs import TrackedDecodeGraphs
from izwi.backends.torch.sampler import Suppressed
from izwi.backends.torch.state import StateArena
from izwi.backends.torch.triton.attention_decode import takes_heads
from izwi.config import EngineConfig
from izwi.model.encoders import EncodesPadded
from izwi.model.protocol import Model, Recordable, RecordableModel, RecordableTracks
from izwi.model.step_batch import Row, StepBatch, places_drawn
from izwi.model.tracks import frame_track
from izwi.request.request import EncodeInput
from izwi.sampling.draws import Logprobs, logprobs_of

# What the driver keeps of the graphs of one model once they are recorded (measured: 120 MB).
_DRIVER_BYTES = 128 << 20


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
class Recorders:
    """What records the graphs of all models of a device.

    Attributes:
        steps: For encoders, prompts and decode steps, of which one runs at a time.
        codec: For the codecs: they run beside the next step, which has priority.
    """

    steps: GraphRecorder
    codec: GraphRecorder

    @staticmethod
    def on(device: torch.device) -> Recorders:
        """Create both, with a pool each on CUDA."""
        if device.type != "cuda":
            return Recorders(GraphRecorder(device), GraphRecorder(device))
        pools = GraphPool(device, priority=-1), GraphPool(device)
        return Recorders(*(GraphRecorder(device, pool) for pool in pools))

    def prime(self, graphs: GraphBytes) -> None:
        """Prepare for graphs with these working sets."""
        self.steps.prime(graphs.steps)
        self.codec.prime(graphs.codec)


def rehearsed(model: Model, arrays: ModelArrays, ops: TorchOps, config: EngineConfig) -> GraphBytes:
    """Run everything that `Graphs.of` records, with kernels compiled only, and measure its memory.

    `arrays.kv` may be smaller than it says, because no kernel reads it.
    """
    if ops.device.type != "cuda":
        return GraphBytes()
    watch_triton()
    steps, codec = Rehearsal(ops.device), Rehearsal(ops.device)
    before = torch.cuda.memory_allocated(ops.device)
    made: list[Graphs] = []
    recorders = Recorders(steps, codec)
    rehearse(lambda: made.append(Graphs.of(model, arrays, ops, config, recorders)))
    buffers = torch.cuda.memory_allocated(ops.device) - before
    made.clear()
    gc.collect()  # free reference cycles
    torch.cuda.empty_cache()
    return GraphBytes(steps.peak_bytes, codec.peak_bytes, buffers, _DRIVER_BYTES)


@dataclass(frozen=True, slots=True, eq=False)
class Graphs:
    """Recorded steps of one model.

    Attributes:
        decodes: None if recorded attention cannot read the model's keys and values, or if entries
            are drawn at output positions, so that there are no decode steps.
        prompts: Also None if attention runs in torch, where each position would gather its keys.
        codec: None for a model that writes text.
        encoders: None for a model without an encoder that can be recorded.
    """

    model: Model
    recordable: RecordableModel | None
    kv: PagedKV
    ops: TorchOps
    decodes: DecodeGraphs | TrackedDecodeGraphs | None
    prompts: PromptGraphs | None
    codec: CodecGraphs | None
    encoders: EncoderGraphs | None

    @staticmethod
    def of(
        model: Model,
        arrays: ModelArrays,
        ops: TorchOps,
        config: EngineConfig,
        recorders: Recorders,
    ) -> Graphs:
        """Record everything that requests can need, so that none of them waits for it."""
        watch_triton()
        kv = arrays.kv
        recordable = _recordable(model, kv, ops.attends_with)
        encoders = _encoders(model, ops, config, recorders.steps)
        decodes = prompts = None
        if recordable is not None:
            suppressed = arrays.suppressed
            decodes = _decodes(recordable, kv, suppressed, ops, config, recorders.steps)
            prompts = _prompts(recordable, kv, ops, config, recorders.steps)
        codec = _codec(model, arrays.arena, config, recorders.codec)
        return Graphs(model, recordable, kv, ops, decodes, prompts, codec, encoders)

    def encodes(self, piece: EncodeInput) -> bool:
        """Return whether a piece of audio can be encoded with a graph."""
        return self.encoders is not None and self.encoders.takes(piece)

    def encode(self, pieces: Seq[EncodeInput]) -> list[Tensor]:
        """Encode pieces of audio; see `EncoderGraphs.encode`."""
        assert self.encoders is not None
        return self.encoders.encode(pieces)

    def takes(self, batch: StepBatch) -> bool:
        """Return whether these rows can be run with graphs; each may draw one entry."""
        if self.decodes is None or max(batch.counts, default=0) > 1:
            return False
        return self.decodes.takes(batch)

    def launch(self, batch: StepBatch) -> InFlight[tuple[list[list[int]], dict[int, Logprobs]]]:
        """Launch the rows.

        Prompts run separately, because they would slow down every decode. Only their last positions
        run with the decodes, if there are any: sampling one more row costs no extra time.

        The previous launch may still be in flight: its entries are read on the device.

        Returns:
            Waits for an entry of each row that emits, in order, and for `Sampler.logprobs`.
        """
        assert self.decodes is not None
        assert self.recordable is not None
        self.decodes.begin_step()
        decodes: list[Row] = []
        prompts: list[Row] = []
        for row in batch.rows:
            (decodes if row.decodes else prompts).append(row)
        last = [row.part(row.stop - 1, row.stop) for row in prompts if row.emits]
        together = self.decodes.in_place([*decodes, *last]) if decodes else []
        inputs = self.recordable.inputs(together) if together else None
        if inputs is None:
            parts = self._drawn_apart(decodes, prompts)
        else:
            before = [row.part(row.start, row.stop - row.emits) for row in prompts]
            if before := [row for row in before if row.stop > row.start]:
                self._run(before)
            parts = self.decodes.decode(inputs, together)
        return InFlight(partial(_in_order, parts, batch.draws), [part.copy for part in parts])

    def _drawn_apart(self, decodes: list[Row], prompts: list[Row]) -> list[Part]:
        """Sample for decodes, then for prompts."""
        assert self.decodes is not None
        assert self.recordable is not None
        parts: list[Part] = []
        if decodes:
            inputs = self.recordable.inputs(decodes)
            assert inputs is not None  # what was emitted is ids
            parts += self.decodes.decode(inputs, decodes)
        hidden = self._run(prompts)
        ready = [row for row in prompts if row.emits]
        if ready:
            hidden = self.ops.take(hidden, self.ops.array(places_drawn(prompts)))
            parts += self.decodes.draw(hidden, ready)
        return parts

    def _run(self, rows: Seq[Row]) -> Tensor:
        """Return hidden states of the rows' positions, (positions, width)."""
        if self.prompts is not None and self.prompts.takes(rows):
            return self.prompts.run(rows)
        states: Tensor = self.model.run(self.model.embed(rows), self.kv.context(rows))
        return states

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


def _in_order(parts: Seq[Part], emitting: Seq[Row]) -> tuple[list[list[int]], dict[int, Logprobs]]:
    """Wait for the entries of all parts, and sort them by row; see `Graphs.launch`."""
    entries: dict[int, list[int]] = {}
    likely: dict[int, float | list[float]] = {}
    for rows, copy in parts:
        keys = [row.key for row in rows]
        drawn, *logprobs = copy.wait()
        entries.update(zip(keys, drawn.tolist(), strict=True))
        for found in logprobs:
            likely.update(zip(keys, found.tolist(), strict=True))
    asking = ((n, row) for n, row in enumerate(emitting) if row.request.logprobs)
    return (
        [entries[row.key] for row in emitting],
        {n: logprobs_of(row.request, likely[row.key]) for n, row in asking},
    )


def _encoders(
    model: Model, ops: TorchOps, config: EngineConfig, recorder: GraphRecorder
) -> EncoderGraphs | None:
    if not isinstance(model, EncodesPadded) or not model.padded_encoders:
        return None
    most = config.max_step_encodes
    encoders = EncoderGraphs(model.padded_encoders, recorder, most, ops.device, ops.dtype)
    if recorder.records:
        encoders.warm_up()
    return encoders


def _decodes(
    model: RecordableModel,
    kv: PagedKV,
    suppressed: Seq[Suppressed | None],
    ops: TorchOps,
    config: EngineConfig,
    recorder: GraphRecorder,
) -> DecodeGraphs | TrackedDecodeGraphs:
    most = config.max_running
    decodes: DecodeGraphs | TrackedDecodeGraphs
    if len(model.tracks) > 1:
        assert isinstance(model, RecordableTracks)
        decodes = TrackedDecodeGraphs(model, model, kv, recorder, most, suppressed)
    else:
        # torch would gather as many keys as a sequence can come to have
        most_keys = model.max_positions if ops.attends_with == "triton" else FEW_KEYS
        decodes = DecodeGraphs(model, kv, recorder, most, suppressed[0], most_keys)
    if recorder.records:
        decodes.warm_up()
    return decodes


def _prompts(
    model: RecordableModel,
    kv: PagedKV,
    ops: TorchOps,
    config: EngineConfig,
    recorder: GraphRecorder,
) -> PromptGraphs | None:
    if ops.attends_with != "triton":
        return None
    prompts = PromptGraphs(model, kv, recorder, config.max_running)
    if recorder.records:
        prompts.warm_up()
    return prompts


def _codec(
    model: Model, arena: StateArena, config: EngineConfig, recorder: GraphRecorder
) -> CodecGraphs | None:
    frames = frame_track(model.tracks)
    if frames is None:
        return None
    most, track = min(config.max_running, config.max_step_vocodes), model.tracks[frames]
    codec = CodecGraphs(track, arena, recorder, most, config.chunk_ramp, arena.device)
    if recorder.records:
        with arena.side_stream():
            codec.warm_up()
    return codec


def _recordable(model: Model, kv: PagedKV, attends_with: str) -> RecordableModel | None:
    """Return the model if its decode steps can be recorded, else None.

    Not supported are attention windows, and several tracks with attention in torch.
    """
    plain = kv.plain is not None and takes_heads(kv.spec.head_dim) and not kv.spec.windows
    repeats = not model.tracks[0].in_prompt
    if len(model.tracks) > 1:
        repeats = isinstance(model, RecordableTracks) and attends_with == "triton"
    return model if plain and repeats and isinstance(model, Recordable) else None
