"""A speech model of a few thousand weights whose every output depends on its whole history.

It goes through the real decoder stack, pages and sampler, so a page lost, shared or rebuilt
wrongly changes what it says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from izwi.model import KVSpec, Pick, Row, StateSpec
from izwi.ops.torch_ops import TorchOps
from izwi.request import EncodeInput, Request, SamplingParams, Task
from izwi_models.qwen3.decoder import DecoderConfig, decode, tensor_shapes

VOCAB = 40
STOP = 39
CODEBOOKS = 3


@dataclass(frozen=True)
class ToyPrompt:
    ids: tuple[int, ...]
    audio: tuple[EncodeInput, ...] = ()

    @property
    def num_positions(self) -> int:
        return len(self.ids) + len(self.audio)

    @property
    def encode_inputs(self) -> tuple[EncodeInput, ...]:
        return self.audio


class ToySpeech:
    """Implements SpeechModel."""

    task = Task.SPEECH
    num_codebooks = CODEBOOKS
    sample_rate = 1000
    frame_samples = 4
    max_positions = 512
    speakers: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    can_clone = False
    config = DecoderConfig(16, 24, 2, 4, 2, 8, 1e-6, 1e4)

    def __init__(self) -> None:
        self.ops = TorchOps()
        g = torch.Generator().manual_seed(0)
        self.weights = {
            name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=g) * 0.4
            for name, shape in tensor_shapes(self.config, "").items()
        }
        self.embedding = torch.randn(CODEBOOKS, VOCAB, 16, generator=g)
        self.heads = torch.randn(CODEBOOKS, VOCAB, 16, generator=g)
        self.poison: set[str] = set()
        self.batch_sizes: list[int] = []
        self.suppressed = np.zeros(VOCAB, dtype=bool)
        self.suppressed[30:39] = True

    @property
    def kv(self) -> KVSpec:
        return self.config.kv

    @property
    def codec_state(self) -> Mapping[str, StateSpec]:
        return {"sum": StateSpec((1,))}

    def encode(self, inputs: Sequence[EncodeInput]) -> list[Any]:
        return [torch.full((1, 16), float(np.tanh(i.values.sum()))) for i in inputs]

    def _embed(self, row: Row) -> torch.Tensor:
        prompt = row.sequence.request.prompt
        assert isinstance(prompt, ToyPrompt)
        parts = [self.embedding[0][list(prompt.ids)], *row.sequence.encoded]
        if row.sequence.emitted:
            codes = torch.tensor(row.sequence.emitted)
            parts.append(sum(self.embedding[c][codes[:, c]] for c in range(CODEBOOKS)))
        return torch.cat(parts)[row.start : row.stop]

    def step(self, rows: Sequence[Row], context: Any, pick: Pick) -> Any:
        if any(row.sequence.request.request_id in self.poison for row in rows):
            raise RuntimeError("poisoned row")
        self.batch_sizes.append(len(rows))
        x = torch.cat([self._embed(row) for row in rows])
        hidden = decode(self.ops, self.weights, self.config, "", x, context)
        ends = np.cumsum([row.stop - row.start for row in rows]) - 1
        h = hidden[[end for end, row in zip(ends, rows, strict=True) if row.emits]]
        ids = []
        for codebook in range(CODEBOOKS):
            ids.append(pick(h @ self.heads[codebook].T, codebook))
            h = h + 0.1 * self.embedding[codebook][ids[-1]]
        return torch.stack(ids, 1)

    def warm_codes(self, sequence: Any) -> None:
        return None

    def vocode(self, codes: Any, state: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        steps = torch.from_numpy(codes).sum(-1).float().repeat_interleave(self.frame_samples, 1)
        total = state["sum"] + steps.cumsum(1)
        return torch.sin(total), {"sum": total[:, -1:]}


def toy_request(name: str, length: int, seed: int, frames: int, audio: int = 0) -> Request:
    rng = np.random.default_rng(seed)
    clips = tuple(
        EncodeInput("clip", rng.standard_normal(3).astype(np.float32)) for _ in range(audio)
    )
    sampling = SamplingParams(0.9, 20, 0.95, 1.1) if seed % 3 else SamplingParams()
    return Request(
        request_id=name,
        model="toy",
        prompt=ToyPrompt(tuple(rng.integers(0, 30, length).tolist()), clips),
        sampling=sampling,
        codebook_sampling=sampling,
        seed=seed,
        max_entries=frames,
        min_entries=2,
        stop_ids=(STOP,),
    )
