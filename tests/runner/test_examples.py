"""What captured steps leave out runs before the first request, so that no kernel is new then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from izwi.backends.compilations import Compilation, report
from izwi.backends.torch.backend import TorchBackend
from izwi.backends.torch.ops import TorchOps
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.inputs.images import ChatImage
from izwi.model.layers import KVSpec
from izwi.request.request import Reason, Request
from izwi.runner.examples import run_examples
from izwi_models.lfm2_audio import FAMILY as S2S
from izwi_models.qwen3_asr import FAMILY as ASR
from izwi_models.qwen3_vl import FAMILY as VL
from tests.models.loading import Checkpoint, load_checkpoint
from tests.models.tiny_asr import write_tiny_asr
from tests.models.tiny_lfm2_audio import write_tiny_lfm2_audio
from tests.models.tiny_vl import drawn_image, write_tiny_vl

pytest.importorskip("triton")  # which staging knows the limits of
from izwi.backends.torch.captured import prompt_graphs
from izwi.backends.torch.captured.capturer import GraphCapturer
from izwi.backends.torch.captured.graphs import Capturers
from tests.backends.torch.eager import EagerOps, drawn_by_torch

SPEC = KVSpec(1, 1, 8)
CONFIG = EngineConfig(max_running=2, kv_bytes=1 << 22, page_size=8, chunk_ramp=(1, 2))


class CompilingOps(EagerOps):
    """Reports a kernel at the first use of each of its variants, as Triton does.

    A product has variants by weight and number of rows, a norm by width and stride.
    """

    def __init__(self) -> None:
        super().__init__()
        self._compiled: set[tuple[Any, ...]] = set()

    def _compile(self, *variant: Any) -> None:
        if variant not in self._compiled:
            self._compiled.add(variant)
            report(Compilation("compiled", str(variant), 0.1))

    def linear(self, x: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor:
        rows = x.numel() // x.shape[-1]
        bucket = rows if rows <= 2 else min(128, max(16, 1 << (rows - 1).bit_length()))
        self._compile("linear", bucket, tuple(weight.shape), bias is None)
        return super().linear(x, weight, bias)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        self._compile("layer_norm", x.shape[-1])
        return super().layer_norm(x, weight, bias, eps)

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        self._compile("rms_norm", x.shape[-1], x.stride(-2) % 16, weight is None)
        return super().rms_norm(x, weight, eps)


@pytest.fixture(autouse=True)
def few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger prompts run the same kernels."""
    monkeypatch.setattr(prompt_graphs, "_SIZES", (16, 32, 64, 128))
    monkeypatch.setattr(prompt_graphs, "_BY_USE", (128, 64, 32, 16))


def compiled_while(engine: Engine, request: Request) -> int:
    """Serve a request; return how many kernels were compiled meanwhile."""
    (runner,) = engine.runners
    before = runner.num_compiled
    engine.submit(request)
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.reason is not Reason.ERROR, chunk.error
    return runner.num_compiled - before


def loaded(family: Any, folder: Path) -> tuple[Checkpoint, Engine]:
    backend = TorchBackend(CompilingOps())
    steps, codec = (GraphCapturer(torch.device("cpu")) for _ in range(2))
    steps.captures = codec.captures = True  # all at the start, as on CUDA
    backend._capturers = Capturers(steps, codec)
    checkpoint = load_checkpoint(family, folder, backend)
    return checkpoint, Engine({"m": checkpoint.model}, backend, CONFIG)


def seeing(checkpoint: Checkpoint, width: int, height: int) -> Request:
    image = ChatImage(0, pixels=drawn_image(width, height, 1))
    message = ChatMessage(Role.USER, "What is this?", images=(image,))
    ask = ChatInput((message,), temperature=0.0, max_new_tokens=4)
    return checkpoint.frontend.prepare_chat(f"{width}x{height}", "m", ask)


def test_the_first_image_compiles_no_kernel(tmp_path: Path) -> None:
    with drawn_by_torch():
        checkpoint, engine = loaded(VL, write_tiny_vl(tmp_path / "m"))
        for size in ((32, 32), (64, 48), (128, 112)):
            assert compiled_while(engine, seeing(checkpoint, *size)) == 0


def test_examples_of_images_reach_from_the_smallest_to_the_largest(tmp_path: Path) -> None:
    checkpoint = load_checkpoint(VL, write_tiny_vl(tmp_path / "m"), TorchBackend(EagerOps()))
    prompts = checkpoint.model.example_prompts()
    assert [prompt.num_positions for prompt in prompts] == [4, 8, 16, 32, 64]
    assert all(prompt.image_starts == (0,) for prompt in prompts)


def test_examples_that_no_pages_hold_are_left_out(tmp_path: Path) -> None:
    backend = TorchBackend(EagerOps())
    checkpoint = load_checkpoint(VL, write_tiny_vl(tmp_path / "m"), backend)
    lengths: list[int] = []
    run = checkpoint.model.run

    def noted(x: Any, context: Any) -> Any:
        if x.shape[1] > checkpoint.model._config.text.hidden_size:  # wider rows are of images
            lengths.append(len(x))
        return run(x, context)

    checkpoint.model.run = noted
    page_bytes = Engine({"m": checkpoint.model}, backend, CONFIG).runners[0].page_bytes
    lengths.clear()
    small = EngineConfig(max_running=2, kv_bytes=3 * page_bytes, page_size=8, chunk_ramp=(1, 2))
    Engine({"m": checkpoint.model}, backend, small)
    assert sum(lengths) == 4 + 8 + 16


@pytest.mark.parametrize(("family", "write"), [(ASR, write_tiny_asr), (S2S, write_tiny_lfm2_audio)])
def test_each_audio_encoder_runs_once_without_a_graph(
    tmp_path: Path, family: Any, write: Any
) -> None:
    """For pieces that are longer than its graphs, or come in a batch of another size."""
    backend = TorchBackend(TorchOps())
    model: Any = load_checkpoint(family, write(tmp_path / "m"), backend).model
    encoded: dict[str, Any] = {}

    def encode(pieces: Any) -> list[Any]:
        with backend.running():
            (found,) = model.encode(pieces)
        encoded[pieces[0].kind] = found
        return [found]

    run_examples(model, backend.paged_kv(SPEC, 1, 8, "auto"), encode, lambda _: None)
    assert encoded.keys() == model.padded_encoders.keys()
    assert all(torch.isfinite(found).all() for found in encoded.values())
