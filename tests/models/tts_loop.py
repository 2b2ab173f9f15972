"""The plainest loop that can run a speech model: no engine, whole keys kept per sequence."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from izwi.backends.torch.attention.dense import attend, rope_table
from izwi.model.step_batch import Row
from izwi.ops.protocol import AttentionSpec
from izwi.request.request import Request
from izwi.request.sequence import Sequence
from izwi.runner.batch import row_of
from izwi_models.qwen3_tts.model import Qwen3TTS
from tests.steps import batch, step

Cache = dict[tuple[int, int], tuple[Tensor, Tensor]]  # (sequence, layer) -> keys, values


class PackedContext:
    """Attention over packed rows, (positions, channels), with whole keys and values per row."""

    def __init__(self, rows: Seq[Row], cache: Cache):
        self._rows, self._cache = rows, cache
        self._positions = torch.cat([torch.arange(row.start, row.stop) for row in rows])

    def rope(
        self, num_tokens: int, spec: AttentionSpec, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        assert num_tokens == len(self._positions)
        assert spec.rope_theta is not None
        return rope_table(self._positions, spec.head_dim, spec.rope_theta, dtype)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        outputs, first = [], 0
        for row in self._rows:
            stop = first + row.stop - row.start
            key = (id(row.entries), layer)
            keys, values = k[first:stop], v[first:stop]
            if row.start:
                past_keys, past_values = self._cache[key]
                keys, values = torch.cat([past_keys, keys]), torch.cat([past_values, values])
            self._cache[key] = (keys, values)
            seen = torch.arange(row.stop) <= torch.arange(row.start, row.stop)[:, None]
            outputs.append(attend(q[None, first:stop], keys[None], values[None], seen[None])[0])
            first = stop
        return torch.cat(outputs)


def start(model: Qwen3TTS, request: Request) -> Sequence:
    """A sequence whose audio is encoded."""
    sequence = Sequence(request, arrival=0)
    sequence.encoded = list(model.encode(request.prompt.encode_inputs))
    return sequence


def greedy(model: Qwen3TTS, sequences: Seq[Sequence]) -> Callable[[Tensor, int], Tensor]:
    """A pick that takes the most likely id, after the penalty and the suppression."""

    def pick(logits: Tensor, codebook: int) -> Tensor:
        if codebook == 0:
            rows = zip(logits, sequences, strict=True)
            logits = torch.stack([processed(model, row, sequence) for row, sequence in rows])
        return logits.argmax(-1)

    return pick


def processed(model: Qwen3TTS, logits: Tensor, sequence: Sequence) -> Tensor:
    """Logits of codebook 0 as they are drawn from, but for temperature, top-k and top-p."""
    request, row = sequence.request, logits.clone()
    seen = torch.tensor(sorted({frame[0] for frame in sequence.emitted}), dtype=torch.int64)
    penalty = request.sampling.repetition_penalty
    row[seen] = torch.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
    if len(sequence.emitted) < request.min_entries:
        row[list(request.stop_ids)] = -torch.inf
    row[torch.from_numpy(model.tracks[0].suppressed)] = -torch.inf
    return row


def run(
    model: Qwen3TTS, requests: Seq[Request], frames: int, *, chunk: int | None = None
) -> list[np.ndarray]:
    """Speak all requests together, greedily, `frames` frames each.

    Args:
        model: What speaks.
        requests: What is said.
        frames: Frames of each; meeting the end of speech earlier is an error.
        chunk: Positions of prompt that a row runs in one step; None for all at once.
    """
    sequences = [start(model, request) for request in requests]
    cache: Cache = {}
    with torch.inference_mode():
        while any(len(sequence.emitted) < frames for sequence in sequences):
            live = [sequence for sequence in sequences if len(sequence.emitted) < frames]
            rows = [_row(sequence, chunk) for sequence in live]
            pairs = list(zip(live, rows, strict=True))
            emitting = [sequence for sequence, row in pairs if row.emits]
            context, pick = PackedContext(rows, cache), greedy(model, emitting)
            drawn = step(model, model._ops, batch(*rows), context, pick)
            for sequence, row in pairs:
                sequence.kv.num_computed = row.stop
            for sequence, entry in zip(emitting, drawn.tolist(), strict=True):
                assert entry[0] not in sequence.request.stop_ids
                sequence.emitted.append(tuple(entry))
    return [np.array(sequence.emitted) for sequence in sequences]


def _row(sequence: Sequence, chunk: int | None) -> Row:
    first, stop = sequence.kv.num_computed, sequence.num_positions
    return row_of(sequence, first, stop if chunk is None else min(stop, first + chunk))
