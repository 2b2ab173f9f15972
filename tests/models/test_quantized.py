"""Models with weights in 8 and 4 bits give nearly the output of full weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soxr
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from izwi.backends.torch.backend import TorchBackend, torch_backend
from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.quantized import QuantizedWeight
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.speech import SpeechInput, TranscriptionInput
from izwi.model.protocol import Model
from izwi.request.request import Request
from izwi.request.sequence import Sequence
from izwi.runner.batch import row_of
from izwi_models.qwen3_tts import FAMILY
from tests.models.loading import Checkpoint, load_checkpoint
from tests.models.tiny_tts import write_tiny_tts

TEXT = "She put the book on the table near the window."
SPEAKER, LISTENER = "izwi-tiny-tts", "izwi-tiny-asr"
# the layers' four products and the heads; mean cosine of logits against the full weights
KINDS = [("int8", 0.998), ("fp8", 0.99), ("int4", 0.92)]


@torch.inference_mode()
def logits_of(model: Checkpoint, ops: TorchOps, codes: list[list[int]]) -> list[Tensor]:
    """Logits of each codebook of each frame, given the frames before it."""
    request = model.frontend.prepare_speech("r", "m", SpeechInput(TEXT, temperature=0))
    sequence = Sequence(request, 0)
    sequence.emitted += [tuple(frame) for frame in codes]
    found: list[Tensor] = []
    stop = sequence.num_positions - 1
    hidden = model.model.run(
        model.model.embed([row_of(sequence, 0, stop)])[None], ops.dense_context(1, stop)
    )[0]

    def pick(logits: Tensor, codebook: int) -> Tensor:
        found.append(logits)
        return torch.tensor(codes)[:, codebook]

    model.model.draw(hidden[sequence.num_prompt - 1 :], pick)
    return found


def run(model: Model, ops: TorchOps, request: Request) -> tuple[list[list[int]], np.ndarray]:
    """Entries and audio of one request."""
    engine = Engine({"m": model}, TorchBackend(ops), EngineConfig(kv_bytes=1 << 24))
    engine.submit(request)
    entries, pcm = [], [np.zeros(0, np.float32)]
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.error is None
            entries += chunk.entries.tolist()
            pcm += [] if chunk.pcm is None else [chunk.pcm]
    return entries, np.concatenate(pcm)


def speaker_with(weights: str) -> tuple[Checkpoint, TorchOps]:
    """The embedded voice with one kind of weights."""
    backend = torch_backend("cpu", weights=weights)
    registry = Registry(backend)
    registry.load(SPEAKER)
    return Checkpoint(registry.model(SPEAKER), registry.models[SPEAKER]), backend.ops


@pytest.mark.parametrize(("weights", "least"), KINDS)
def test_logits_are_near_those_of_full_weights(weights: str, least: float) -> None:
    model, ops = speaker_with("auto")
    request = model.frontend.prepare_speech("r", "m", SpeechInput(TEXT, temperature=0))
    codes, _ = run(model.model, ops, request)
    expected, found = logits_of(model, ops, codes), logits_of(*speaker_with(weights), codes)
    cosines = torch.stack(
        [cosine_similarity(a, b, dim=-1) for a, b in zip(found, expected, strict=True)]
    )
    assert cosines.shape == (model.model.tracks[0].num_codebooks, len(codes))
    assert cosines.mean() > least
    assert cosines.max() < 1 - 1e-7, "some codebook has full weights"


def test_every_large_product_of_the_decoders_is_quantized(tmp_path: Path) -> None:
    folder = write_tiny_tts(tmp_path / "tts")
    model = load_checkpoint(FAMILY, folder, torch_backend("cpu", weights="int8"))
    names = {
        name for name, weight in model.model._weights.items() if isinstance(weight, QuantizedWeight)
    }
    parts = {"self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"}
    talker = {f"talker.model.layers.{n}.{part}.weight" for n in range(3) for part in parts}
    predictor = {
        f"talker.code_predictor.model.layers.{n}.{part}.weight" for n in range(2) for part in parts
    }
    heads = {f"talker.code_predictor.lm_head.{n}.weight" for n in range(15)}
    assert names == talker | predictor | heads | {"talker.codec_head.weight"}


@pytest.mark.parametrize(
    "weights",
    [*(pytest.param(each, marks=pytest.mark.slow) for each in ("int8", "fp8")), "int4"],
)
def test_speech_of_quantized_weights_is_transcribed_correctly(weights: str) -> None:
    backend = torch_backend("cpu", weights=weights)
    registry = Registry(backend)
    for name in (SPEAKER, LISTENER):
        registry.load(name)
    speaker, listener = registry.speech(SPEAKER), registry.transcription(LISTENER)
    request = speaker.prepare_speech("r", "m", SpeechInput(TEXT, voice="amber", temperature=0))
    _, pcm = run(registry.models[SPEAKER], backend.ops, request)
    heard = TranscriptionInput(soxr.resample(pcm, 24_000, 16_000).astype(np.float32))
    asked = listener.prepare_transcription("r", "m", heard)
    tokens, _ = run(registry.models[LISTENER], backend.ops, asked)
    text = listener.read([token for (token,) in tokens], None).text.lower()
    words = [word.strip(".") for word in TEXT.lower().split()]
    assert sum(word in text for word in words) >= len(words) - 2, text
