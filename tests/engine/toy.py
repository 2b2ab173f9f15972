"""A speech model of a few thousand weights whose every output depends on its whole history.

It goes through the real decoder stack, pages and sampler, so a page lost, shared or rebuilt
wrongly changes what it says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from msgspec import Struct

from izwi.backends.torch.ops import TorchOps
from izwi.capability import Capability
from izwi.digests import digest_ints
from izwi.layers import StateSpec
from izwi.model import Pick, Row
from izwi.request import EncodeInput, Request, SamplingParams
from izwi.tracks import Track
from izwi_models.qwen3.decoder import DecoderConfig, decode, tensor_shapes

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


class ToyModel:
    """What the three toys share. Frames of several ids or tokens of one."""

    num_codebooks = CODEBOOKS
    name = "frames"
    max_positions = 512
    config = DecoderConfig(16, 24, 2, 4, 2, 8, 1e-6, 1e4)

    num_inputs = CODEBOOKS + 1

    def __init__(self, ops: TorchOps | None = None) -> None:
        self.ops = ops or TorchOps()
        g = torch.Generator().manual_seed(0)
        self.weights = {
            name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=g) * 0.4
            for name, shape in tensor_shapes(self.config, "").items()
        }
        self.weights = {name: w.to(self.ops.device) for name, w in self.weights.items()}
        self.embedding, self.text, self.heads = (
            torch.randn(shape, generator=g).to(self.ops.device)
            for shape in ((CODEBOOKS, VOCAB, 16), (VOCAB, 16), (CODEBOOKS, VOCAB, 16))
        )
        self.poison: set[str] = set()
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

    def content_keys(self, sequence: Any, start: int, stop: int) -> list[int]:
        prompt = sequence.request.prompt
        keys = [*prompt.ids, *(piece.digest for piece in prompt.audio)]
        frames = range(max(0, stop - len(keys)))
        keys += [digest_ints([*sequence.emitted[k], self._beside(sequence, k)]) for k in frames]
        return keys[start:stop]

    def _beside(self, sequence: Any, frame: int) -> int:
        track = [*sequence.request.prompt.track, *sequence.input.written]
        return track[frame] if frame < len(track) else 0

    def encode(self, inputs: Sequence[EncodeInput]) -> list[Any]:
        self.num_encoded += len(inputs)
        device = self.embedding.device
        return [torch.full((1, 16), float(np.tanh(i.values.sum())), device=device) for i in inputs]

    def _embed(self, row: Row) -> torch.Tensor:
        sequence = row.sequence
        prompt = sequence.request.prompt
        assert isinstance(prompt, ToyPrompt)
        device = self.embedding.device
        encoded = [torch.zeros(1, 16, device=device) if e is None else e for e in sequence.encoded]
        parts = [self.embedding[0][list(prompt.ids)], *encoded]
        if sequence.emitted:
            codes = torch.tensor(sequence.emitted, device=device)
            beside = [self._beside(sequence, k) for k in range(len(sequence.emitted))]
            frames = sum(self.embedding[c][codes[:, c]] for c in range(self.num_codebooks))
            parts.append(frames + self.text[beside])
        return torch.cat(parts)[row.start : row.stop]

    def embed(self, rows: Sequence[Row]) -> Any:
        if any(row.sequence.request.request_id in self.poison for row in rows):
            raise RuntimeError("poisoned row")
        self.batch_sizes.append(len(rows))
        self.num_tokens += sum(row.stop - row.start for row in rows)
        return torch.cat([self._embed(row) for row in rows])

    def inputs(self, rows: Sequence[Row]) -> Any:
        inputs = []
        for sequence, start, stop in rows:
            prompt = sequence.request.prompt
            assert isinstance(prompt, ToyPrompt)
            if start < len(prompt.ids) + len(sequence.encoded) and sequence.encoded:
                return None
            known = [(i, *[-1] * self.num_codebooks) for i in prompt.ids]
            for k, frame in enumerate(sequence.emitted):
                known.append((*frame, self._beside(sequence, k)))
            inputs += known[start:stop]
        return np.array(inputs)

    def embed_inputs(self, inputs: Any) -> Any:
        parts = [*self.embedding[: self.num_codebooks], self.text]
        looked_up = [part[ids.clamp_min(0)] for part, ids in zip(parts, inputs.T, strict=True)]
        there = (inputs.T >= 0)[..., None]
        return sum(torch.where(one, x, 0.0) for one, x in zip(there, looked_up, strict=True))

    def run(self, x: Any, context: Any) -> Any:
        return decode(self.ops, self.weights, self.config, "", x, context)

    def draw(self, hidden: Any, pick: Pick, track: int = 0) -> Any:
        ids = []
        for codebook in range(self.num_codebooks):
            ids.append(pick(hidden @ self.heads[codebook].T, codebook))
            hidden = hidden + 0.1 * self.embedding[codebook][ids[-1]]
        return torch.stack(ids, 1)


class ToySpeech(ToyModel):
    """Implements SpeechModel, and is its own codec."""

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

    def positions_ready(self, sequence: Any) -> int:
        known = len(sequence.request.prompt.track) + len(sequence.input.written)
        everything = sequence.num_positions
        if not sequence.input.is_open:
            return everything
        return min(everything, sequence.request.prompt.num_positions + known)

    def max_entries(self, sequence: Any) -> int:
        return sequence.request.max_entries

    def warm_codes(self, sequence: Any) -> None:
        return None

    def decode(self, codes: Any, state: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        steps = codes.sum(-1).float().repeat_interleave(self.frame_samples, 1)
        total = state["sum"] + steps.cumsum(1)
        return torch.sin(total), {"sum": total[:, -1:]}


class ToyCodec(ToySpeech):
    """A codec whose state has two types of arrays, and clones that continue a clip."""

    @property
    def state(self) -> Mapping[str, StateSpec]:
        return {"sum": StateSpec((1,)), "count": StateSpec((1,), "int64")}

    def warm_codes(self, sequence: Any) -> Any:
        if not sequence.request.request_id.startswith(CLONE):
            return None
        return torch.full((3, self.num_codebooks), 5, device=self.embedding.device)

    def decode(self, codes: Any, state: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        steps = codes.sum(-1).float().repeat_interleave(self.frame_samples, 1)
        total = state["sum"] + steps.cumsum(1)
        frames = torch.arange(codes.shape[1], device=codes.device)
        before = state["count"] + frames.repeat_interleave(self.frame_samples)
        count = state["count"] + codes.shape[1]
        return torch.sin(total + before), {"sum": total[:, -1:], "count": count}


class ToyText(ToyModel):
    """Writes tokens, with or without audio in its prompt: shaped like chat and transcription."""

    capabilities = (Capability.TRANSCRIBE,)
    num_codebooks = 1
    name = "text"
    num_inputs = 2


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
