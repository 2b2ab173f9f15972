"""A speech model of a few thousand weights whose every output depends on its whole history.

It goes through the real decoder stack, pages and sampler, so a page lost, shared or rebuilt
wrongly changes what it says. It is written over `izwi.ops`, and has the same weights on every
backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Struct

from izwi.backends.torch.ops import TorchOps
from izwi.model.capability import Capability
from izwi.model.layers import StateSpec
from izwi.model.protocol import UNKNOWN, Pick
from izwi.model.step_batch import Row, Span
from izwi.model.tracks import Track
from izwi.ops import Array, Ops
from izwi.request.digests import digest_ints
from izwi.request.request import EncodeInput, Request, SamplingParams
from izwi_models.qwen3.config import DecoderConfig, tensor_shapes
from izwi_models.qwen3.decoder import decode

VOCAB = 40
STOP = 39
CODEBOOKS = 3
CLONE = "clone"  # how the ids of requests begin that continue a clip, of a `ToyCodec`


class ToyPrompt(Struct, frozen=True, tag=True):
    ids: tuple[int, ...]
    audio: tuple[EncodeInput, ...] = ()
    track: tuple[int, ...] = ()  # text beside the frames; more may be written

    @property
    def num_positions(self) -> int:
        return len(self.ids) + len(self.audio)

    @property
    def encode_inputs(self) -> tuple[EncodeInput, ...]:
        return self.audio

    @property
    def content_keys(self) -> npt.NDArray[np.int64]:
        return np.array([*self.ids, *(piece.digest for piece in self.audio)], np.int64)


class ToyModel:
    """Base class of the three toy models: frames of several ids, or tokens."""

    num_codebooks = CODEBOOKS
    name = "frames"
    max_positions = 512
    config = DecoderConfig(16, 24, 2, 4, 2, 8, 1e-6, 1e4)

    num_inputs = CODEBOOKS + 1

    def __init__(self, ops: Ops | None = None) -> None:
        self.ops: Ops = ops or TorchOps()
        g = torch.Generator().manual_seed(0)

        def drawn(shape: tuple[int, ...], scale: float = 1.0) -> Array:
            return self.ops.array((torch.randn(shape, generator=g) * scale).numpy())

        self.weights = {
            name: self.ops.array(np.ones(shape)) if len(shape) == 1 else drawn(shape, 0.4)
            for name, shape in tensor_shapes(self.config, "").items()
        }
        self.embedding, self.text, self.heads = (
            drawn(shape) for shape in ((CODEBOOKS, VOCAB, 16), (VOCAB, 16), (CODEBOOKS, VOCAB, 16))
        )
        self.poison: set[str] = set()
        self.poison_error: Exception = RuntimeError("poisoned row")
        self.batch_sizes: list[int] = []
        self.num_tokens = 0
        self.num_encoded = 0
        suppressed = np.zeros(VOCAB, dtype=bool)
        suppressed[30:39] = True
        self.layers = self.config.layers
        self.tracks = (Track(self.name, self.num_codebooks, VOCAB, suppressed, self._codec),)

    @property
    def _codec(self) -> Any:
        return None

    def content_keys(self, span: Span) -> list[int]:
        prompt = span.request.prompt
        keys = [*prompt.ids, *(piece.digest for piece in prompt.audio)]
        frames = range(span.stop_entry)
        keys += [digest_ints([*span.entries[k], self._beside(span, k)]) for k in frames]
        return keys[span.start : span.stop]

    def _beside(self, span: Span, frame: int) -> int:
        track = [*span.request.prompt.track, *span.written]
        return track[frame] if frame < len(track) else 0

    def encode(self, inputs: Sequence[EncodeInput]) -> list[Any]:
        self.num_encoded += len(inputs)
        return [self.ops.array(np.full((1, 16), np.tanh(i.values.sum()))) for i in inputs]

    def _embed(self, row: Row) -> Array:
        ops = self.ops
        prompt = row.request.prompt
        assert isinstance(prompt, ToyPrompt)
        encoded = [ops.zeros((1, 16)) if e is None else e for e in row.encoded]
        encoded = encoded or [ops.zeros((1, 16))] * len(prompt.audio)  # none of these rows
        parts = [ops.take(self.embedding[0], ops.array(prompt.ids)), *encoded]
        if row.num_known:
            codes = ops.array(row.entries[: row.num_known])
            beside = [self._beside(row, k) for k in range(row.num_known)]
            looked_up = [
                ops.take(self.embedding[c], codes[:, c]) for c in range(self.num_codebooks)
            ]
            parts.append(sum(looked_up) + ops.take(self.text, ops.array(beside)))
        return ops.concat(parts, 0)[row.start : row.stop]

    def embed(self, rows: Sequence[Row]) -> Any:
        if any(row.request.request_id in self.poison for row in rows):
            raise self.poison_error
        self.batch_sizes.append(len(rows))
        self.num_tokens += sum(row.stop - row.start for row in rows)
        return self.ops.concat([self._embed(row) for row in rows], 0)

    def inputs(self, rows: Sequence[Row]) -> Any:
        inputs = []
        for row in rows:
            prompt = row.request.prompt
            assert isinstance(prompt, ToyPrompt)
            if row.start < row.num_prompt and prompt.audio:
                return None
            known = [(i, *[-1] * self.num_codebooks) for i in prompt.ids]
            known += [(UNKNOWN,) * self.num_inputs] * len(prompt.audio)  # none of these rows
            in_flight = [(UNKNOWN,) * self.num_codebooks] * (row.step - row.num_known)
            for k, frame in enumerate([*row.entries[: row.num_known], *in_flight]):
                known.append((*frame, self._beside(row, k)))
            inputs += known[row.start : row.stop]
        return np.array(inputs)

    def embed_inputs(self, inputs: Any) -> Any:
        ops, total = self.ops, 0.0
        self.num_tokens += inputs.shape[0]
        parts = [*(self.embedding[c] for c in range(self.num_codebooks)), self.text]
        for n, part in enumerate(parts):
            ids = inputs[:, n]
            looked_up = ops.take(part, ops.clip(ids, 0, None))
            total = total + ops.where((ids >= 0)[:, None], looked_up, 0.0)
        return total

    def run(self, x: Any, context: Any) -> Any:
        return decode(self.ops, self.weights, self.config, "", x, context)

    def draw(self, hidden: Any, pick: Pick, track: int = 0) -> Any:
        ids = []
        for codebook in range(self.num_codebooks):
            ids.append(pick(hidden @ self.heads[codebook].T, codebook))
            hidden = hidden + 0.1 * self.ops.take(self.embedding[codebook], ids[-1])
        return self.ops.stack(ids, 1)


class ToySpeech(ToyModel):
    """Implements SpeechFrontend, and is its own codec."""

    capabilities = (Capability.SPEAK,)
    sample_rate = 1000
    frame_samples = 4
    lookahead_samples = 0
    speakers: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    can_clone = False
    warms_up = False

    @property
    def _codec(self) -> Any:
        return self

    @property
    def state(self) -> Mapping[str, StateSpec]:
        return {"sum": StateSpec((1,))}

    def positions_ready(self, span: Span) -> int:
        known = len(span.request.prompt.track) + len(span.written)
        return min(span.stop, span.num_prompt + known) if span.is_open else span.stop

    def max_entries(self, span: Span) -> int:
        return span.request.max_entries

    def peak_values(self, frames: int) -> int:
        return 8 * self.frame_samples * frames

    def warm_codes(self, span: Span) -> None:
        return None

    def decode(self, codes: Any, state: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        total = state["sum"] + summed(self.ops, codes, self.frame_samples)
        return self.ops.sin(total), {"sum": total[:, -1:]}


class ToyCodec(ToySpeech):
    """A codec whose state has two types of arrays, and clones that continue a clip."""

    @property
    def state(self) -> Mapping[str, StateSpec]:
        return {"sum": StateSpec((1,)), "count": StateSpec((1,), "int64")}

    def peak_values(self, frames: int) -> int:
        return 8 * self.frame_samples * frames

    def warm_codes(self, span: Span) -> Any:
        if not span.request.request_id.startswith(CLONE):
            return None
        return self.ops.array(np.full((3, self.num_codebooks), 5))

    def decode(self, codes: Any, state: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        total = state["sum"] + summed(self.ops, codes, self.frame_samples)
        frames = np.arange(codes.shape[1]).repeat(self.frame_samples)
        before = self.ops.cast(state["count"] + self.ops.array(frames))
        count = state["count"] + codes.shape[1]
        return self.ops.sin(total + before), {"sum": total[:, -1:], "count": count}


def summed(ops: Ops, codes: Any, frame_samples: int) -> Any:
    """Running sum, (batch, samples) float32, of (batch, frames, codebooks), each frame repeated.

    The numbers are small integers: no order of adding them rounds.
    """
    sample, frame = np.arange(codes.shape[1] * frame_samples)[:, None], np.arange(codes.shape[1])
    times = (sample + 1 - frame * frame_samples).clip(0, frame_samples)  # each was added by then
    return ops.linear(ops.cast(ops.sum(codes, -1)), ops.array(times.astype(np.float32)))


class ToyText(ToyModel):
    """Writes tokens, with or without audio in its prompt: shaped like chat and transcription."""

    capabilities = (Capability.TRANSCRIBE,)
    num_codebooks = 1
    name = "text"
    num_inputs = 2

    def prompt_ids(self, request: Request) -> list[int]:
        prompt = request.prompt
        assert isinstance(prompt, ToyPrompt)
        return [*prompt.ids, *[-1] * len(prompt.audio)]


def toy_request(
    name: str, length: int, seed: int, frames: int, audio: int = 0, model: str = "toy", **more: Any
) -> Request:
    rng = np.random.default_rng(seed)
    clips = tuple(
        EncodeInput("clip", rng.standard_normal(3).astype(np.float32)) for _ in range(audio)
    )
    sampling = SamplingParams(0.9, 20, 0.95, 1.1) if seed % 3 else SamplingParams()
    return Request(
        request_id=name,
        model=model,
        prompt=ToyPrompt(tuple(rng.integers(0, 30, length).tolist()), clips),
        sampling=sampling,
        codebook_sampling=sampling,
        seed=seed,
        max_entries=frames,
        min_entries=2,
        stop_ids=(STOP,),
        **more,
    )
