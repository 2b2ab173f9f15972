"""The recogniser against the reference's numbers in tests/golden/asr*.npz, and against itself."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from izwi.audio.mel import whisper_log_mel
from izwi.backends.torch.attention.dense import attend, rope_table
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.folder import parse_config
from izwi.inputs.speech import TranscriptionInput
from izwi.model.protocol import Pick
from izwi.model.step_batch import Row
from izwi.request.sequence import Sequence
from izwi.runner.batch import row_of
from izwi_models import FAMILIES
from izwi_models.qwen3_asr import FAMILY, encoder
from izwi_models.qwen3_asr.config import HEAD, AsrConfig, tensor_shapes
from izwi_models.qwen3_asr.prompt import cut_windows
from tests.models.loading import Checkpoint, load_checkpoint
from tests.models.tiny_asr import waveform, write_tiny_asr
from tests.steps import batch, step

FOLDER = Path(__file__).parent.parent / "golden"
GOLDEN, NATIVE = np.load(FOLDER / "asr.npz"), np.load(FOLDER / "asr_native.npz")
CASES: list[dict[str, Any]] = json.loads(str(GOLDEN["cases"]))
REAL: dict[str, dict[str, Any]] = json.loads(str(GOLDEN["real"]))
LOGIT_STEP = 3
SECONDS = (0.35, 1.0, 3.2, 8.0, 8.01, 20.0, 61.0)


class FullContext:
    """Attention over one sequence run whole: (positions, heads, head_dim), no cache."""

    def __init__(self, length: int):
        self._positions = torch.arange(length)

    def rope(self, num_tokens: int, spec: Any, dtype: torch.dtype) -> Any:
        return rope_table(self._positions, spec.head_dim, spec.rope_theta, dtype)

    def attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        return attend(q[None], k[None], v[None], None, causal=True)[0]


class CachedContext:
    """Attention of packed rows with a cache per sequence and layer, as the paged one has it."""

    def __init__(self, cache: dict[tuple[int, int], Any], rows: list[Row]):
        self._cache, self._rows = cache, rows

    def rope(self, num_tokens: int, spec: Any, dtype: torch.dtype) -> Any:
        positions = torch.cat([torch.arange(row.start, row.stop) for row in self._rows])
        return rope_table(positions, spec.head_dim, spec.rope_theta, dtype)

    def attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        out, offset = [], 0
        for row in self._rows:
            length = row.stop - row.start
            part = slice(offset, offset + length)
            offset += length
            key = (id(row.entries), layer)
            new = torch.stack([k[part], v[part]])
            if row.start:
                new = torch.cat([self._cache[key], new], dim=1)
            self._cache[key] = new
            seen = torch.arange(row.stop) <= torch.arange(row.start, row.stop)[:, None]
            out.append(attend(q[part][None], new[0][None], new[1][None], seen[None])[0])
        return torch.cat(out)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Checkpoint:
    torch.set_num_threads(1)  # larger is slower at this size
    folder = write_tiny_asr(tmp_path_factory.mktemp("tiny") / "asr")
    return load_checkpoint(FAMILY, folder, torch_backend("cpu"))


def sequence_of(model: Checkpoint, case: dict[str, Any], **more: Any) -> Sequence:
    ask = TranscriptionInput(
        waveform(case["seconds"]), language=case["language"], context=case["context"], **more
    )
    sequence = Sequence(model.frontend.prepare_transcription("r", "tiny", ask), 0)
    sequence.encoded = list(model.model.encode(sequence.request.prompt.encode_inputs))
    return sequence


def encoded(model: Checkpoint, seconds: float) -> np.ndarray:
    windows = cut_windows(model.frontend._config.audio, whisper_log_mel(waveform(seconds)))
    return torch.cat(model.model.encode(windows)).numpy()


class Counted(TorchDispatchMode):
    """Counts what is asked of the device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_convolutions_of_a_few_chunks_at_a_time_change_nothing(model, monkeypatch):
    whole = encoded(model, 20.0)
    monkeypatch.setattr(encoder, "_MOST_NUMBERS", 3 * 8 * 64 * 50)
    np.testing.assert_allclose(encoded(model, 20.0), whole, rtol=1e-5, atol=1e-5)


def greedy(seen: list[Any]) -> Pick:
    def pick(logits: Any, codebook: int) -> Any:
        assert codebook == 0
        seen.append(logits)
        return logits.argmax(-1)

    return pick


def test_family_is_listed():
    assert FAMILY in FAMILIES


@pytest.mark.parametrize("seconds", SECONDS)
def test_encoder_is_the_references(model, seconds):
    expected = GOLDEN[f"encoded_{seconds}"]
    out = encoded(model, seconds)
    assert out.shape == expected.shape
    np.testing.assert_allclose(out, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("seconds", SECONDS[1:])
def test_encoder_is_the_one_of_transformers_5(model, seconds):
    np.testing.assert_allclose(
        encoded(model, seconds), NATIVE[f"encoded_{seconds}"], atol=1e-4, rtol=0
    )


def test_windows_of_many_requests_are_one_batch(model):
    windows = [
        window
        for seconds in (20.0, 0.35, 8.01, 0.35, 16.0)
        for window in cut_windows(model.frontend._config.audio, whisper_log_mel(waveform(seconds)))
    ]
    together = model.model.encode(windows)
    for window, out in zip(windows, together, strict=True):
        np.testing.assert_allclose(out, model.model.encode([window])[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("n", range(len(CASES)))
def test_prompt_is_the_references(model, n):
    request = sequence_of(model, CASES[n]).request
    assert request.prompt.token_ids.tolist() == CASES[n]["prompt"]
    assert request.prompt.num_positions == len(CASES[n]["prompt"])
    assert request.stop_ids == (304, 256)
    assert request.sampling.temperature == 0.0


@pytest.mark.parametrize("n", range(len(CASES)))
def test_logits_are_the_references_when_its_ids_are_forced(model, n):
    sequence, case = sequence_of(model, CASES[n]), CASES[n]
    logits: list[Any] = []
    for token in case["greedy"]:
        context = FullContext(sequence.num_positions)
        row = row_of(sequence, 0, sequence.num_positions)
        picked = step(model.model, model.model._ops, batch(row), context, greedy(logits))
        assert picked.shape == (1, 1)
        sequence.emitted.append((token,))
    ours = torch.cat(logits).numpy()
    np.testing.assert_allclose(ours[:, ::LOGIT_STEP], GOLDEN[f"logits_{n}"], atol=1e-3, rtol=0)
    if case["seconds"] >= 1:
        np.testing.assert_allclose(ours[:, ::LOGIT_STEP], NATIVE[f"logits_{n}"], atol=1e-3, rtol=0)


def test_all_cases_as_one_batch_in_chunks_write_the_references_ids(model):
    sequences = [sequence_of(model, case) for case in CASES]
    cache: dict[tuple[int, int], Any] = {}
    done = [0] * len(sequences)
    while any(len(s.emitted) < 26 for s in sequences):
        live = [s for s in sequences if len(s.emitted) < 26]
        rows = [
            # 17 positions at a time cut prompts, windows and the tail anywhere
            row_of(s, done[i], min(done[i] + 17, s.num_positions))
            for i, s in enumerate(sequences)
            if len(s.emitted) < 26
        ]
        picked = step(
            model.model, model.model._ops, batch(*rows), CachedContext(cache, rows), greedy([])
        )
        emitting = [row for row in rows if row.emits]
        assert picked.shape == (len(emitting), 1)
        for sequence, row in zip(live, rows, strict=True):
            done[sequences.index(sequence)] = row.stop
        for row, entry in zip(emitting, picked.tolist(), strict=True):
            row.entries.append(tuple(entry))
    for sequence, case in zip(sequences, CASES, strict=True):
        assert len(set(case["greedy"])) > 8
        assert [token for (token,) in sequence.emitted] == case["greedy"]
        transcript = model.frontend.read(case["greedy"], case["language"])
        assert [transcript.language, transcript.text] == case["answer"]


def test_inputs_of_many_rows_cost_as_many_operations_as_those_of_one(model):
    sequences = [sequence_of(model, case) for case in CASES] * 3
    sequences[0].emitted = [(7,), (9,)]
    rows = [row_of(s, n, s.num_positions) for n, s in enumerate(sequences)]
    with torch.inference_mode():
        with Counted() as one:
            first = model.model.embed(rows[:1])
        with Counted() as all_of_them:
            together = model.model.embed(rows)
    assert all_of_them.count == one.count > 2
    assert len(first) == rows[0].stop
    parts = torch.cat([model.model.embed([row]) for row in rows])
    assert torch.equal(together, parts)


@pytest.mark.parametrize(
    ("size", "million"), [("0.6B", 782.4), ("1.7B", 2038.1)], ids=["0.6B", "1.7B"]
)
def test_published_sizes_have_the_references_tensors(size, million):
    facts = REAL[size]
    shapes = tensor_shapes(parse_config(AsrConfig, facts["config"], "config.json"))
    assert len(shapes) == facts["names"]
    count = sum(math.prod(shape) for shape in shapes.values())
    assert count == facts["parameters"]
    assert round(count / 1e6, 1) == million
    listed = json.dumps(sorted((name, list(shape)) for name, shape in shapes.items()))
    assert hashlib.sha256(listed.encode()).hexdigest() == facts["digest"]
    assert HEAD not in shapes
