"""A checkpoint in each published format answers as its widened twin, in any batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from izwi.backends.choice import open_backend
from izwi.backends.protocol import Backend
from izwi.backends.torch.backend import torch_backend
from izwi.backends.torch.grouped import GroupedWeight, JoinedWeight, has_kernel
from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.row_blocks import row_multiple
from izwi.checkpoints.folder import parse_config
from izwi.checkpoints.formats.gguf_blocks import BLOCK_FORMATS
from izwi.checkpoints.weight_files import read_tensors
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.chat import ChatInput
from izwi.request.request import Request
from izwi.runner.planning import plan_folders
from izwi_models.qwen3_chat import FAMILY
from izwi_models.qwen3_chat.config import ChatConfig, tensor_shapes
from tests.backends.kinds import HAS_MLX, backend_of, each_backend, needs_mlx
from tests.checkpoints.formats.packing import (
    FORMATS,
    Format,
    is_layer,
    packed_checkpoint,
    write,
    write_twin,
)
from tests.models.tiny_chat import GAINS, TINY, write_tiny_chat
from tests.random_weights import random_weights

# Matrices that 32 divides, as MLX's groups need.
CONFIG = TINY | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
PROMPTS = [tuple(np.random.default_rng(n).integers(0, 256, 5 + 9 * n).tolist()) for n in range(4)]
BY_DAY = {"awq", "compressed-4-zeros-act-order", "fp8-blocks", "nf4-nested"}
# What MLX multiplies as it is; it widens groups that it has no product for.
KEPT_BY_MLX = {
    "gptq-4", "gptq-4-zeros-v2", "awq", "compressed-4", "compressed-8", "compressed-int8", "mlx-4",
    "mlx-6", "mlx-8",
}  # fmt: skip


def some_at_night(by_day: set[str]) -> list[Any]:
    """Every format, of which only some are tried by `make test`."""
    return [n if n in by_day else pytest.param(n, marks=pytest.mark.slow) for n in FORMATS]


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> list[Request]:
    """Sampled answers to prompts of different lengths."""
    folder = write_tiny_chat(tmp_path_factory.mktemp("chat") / "chat", CONFIG)
    frontend: Any = FAMILY.load_frontend(folder)
    asked = {"max_new_tokens": 12, "temperature": 0.8, "logprobs": True}
    return [
        frontend.prepare_chat(str(n), "m", ChatInput((), token_ids=ids, seed=n, **asked))
        for n, ids in enumerate(PROMPTS)
    ]


def write_pair(
    folder: Path, name: str | Format, packs: Callable[[str], bool] = is_layer
) -> tuple[Path, Path]:
    """Write a chat checkpoint in a format, and its widened twin."""
    packer, config = FORMATS[name] if isinstance(name, str) else name
    shapes = tensor_shapes(parse_config(ChatConfig, CONFIG, "config"))
    made = packed_checkpoint(random_weights(shapes, 7, GAINS), packer, config, packs)
    packed, twin = (write_tiny_chat(folder / kind, CONFIG) for kind in ("packed", "twin"))
    return write(packed, made, CONFIG), write_twin(twin, made)


def run(model: Any, backend: Backend, requests: list[Request]) -> list[tuple[list[int], Any]]:
    """Ids and log probabilities of each answer."""
    engine = Engine({"m": model}, backend, EngineConfig(page_size=4, kv_bytes=1 << 20))
    found: dict[str, tuple[list[int], list[Any]]] = {one.request_id: ([], []) for one in requests}
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.error is None, chunk.error
            ids, logprobs = found[chunk.request_id]
            ids += chunk.entries.ravel().tolist()
            logprobs += np.asarray(chunk.logprobs).ravel().tolist()
    return list(found.values())


def check_twin(found: list[tuple[list[int], Any]], expected: list[tuple[list[int], Any]]) -> None:
    for (ids, logprobs), (others, theirs) in zip(found, expected, strict=True):
        assert ids == others
        np.testing.assert_allclose(logprobs, theirs, rtol=1e-3, atol=1e-4)
    assert sum(len(ids) for ids, _ in found) > 30


@pytest.mark.parametrize("name", some_at_night(BY_DAY))
def test_packed_weights_answer_as_their_twin_alone_and_together(
    name: str, requests: list[Request], tmp_path: Path
) -> None:
    packed, twin = write_pair(tmp_path, name)
    backend = torch_backend("cpu", "float32")
    model = FAMILY.load_model(packed, backend)
    together = run(model, backend, requests)
    check_twin(together, run(FAMILY.load_model(twin, backend), backend, requests))
    for n, request in enumerate(requests):
        assert run(model, backend, [request]) == [together[n]]  # the same bits
    kept = [w for w in model._weights.values() if isinstance(w, GroupedWeight | JoinedWeight)]
    assert len(kept) == 2 * 4


def test_no_request_tries_products(requests: list[Request], tmp_path: Path) -> None:
    def packs(name: str) -> bool:  # the head, and of joined weights all but one part
        return "norm" not in name and "v_proj" not in name

    packed, _ = write_pair(tmp_path, "mlx-8", packs)
    backend = torch_backend("cpu", "float32")
    model = FAMILY.load_model(packed, backend)
    row_multiple.cache_clear()
    engine = Engine({"m": model}, backend, EngineConfig(page_size=4, kv_bytes=1 << 20))
    tried = row_multiple.cache_info().misses
    assert tried > 3
    engine.submit(requests[0])
    while engine.has_work:
        assert all(chunk.error is None for chunk in engine.step())
    assert row_multiple.cache_info().misses == tried
    assert row_multiple.cache_info().hits > 50


@needs_mlx
@pytest.mark.parametrize("name", some_at_night({"fp8-blocks", "gptq-4-zeros-v2"}))
def test_mlx_answers_as_the_twin(
    name: str, requests: list[Request], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from izwi.backends.mlx.quantized import QuantizedMatrix

    packed, twin = write_pair(tmp_path, name)
    backend = backend_of("mlx")
    model = FAMILY.load_model(packed, backend)
    warned = [r.getMessage() for r in caplog.records if "were widened" in r.getMessage()]
    assert len(warned) == (name not in KEPT_BY_MLX)
    assert all(f"{packed}: 14 packed weights" in message for message in warned)
    check_twin(
        run(model, backend, requests),
        run(FAMILY.load_model(twin, backend), backend, requests),
    )
    kept = [w for w in model._weights.values() if isinstance(w, QuantizedMatrix)]
    assert len(kept) == (2 * 4 if name in KEPT_BY_MLX else 0)


@each_backend
def test_embeddings_may_be_packed_and_parts_of_a_product_may_differ(
    backend: str, requests: list[Request], tmp_path: Path
) -> None:
    def packs(name: str) -> bool:  # not v_proj, which is joined to q_proj and k_proj
        return "norm" not in name and "v_proj" not in name

    packed, twin = write_pair(tmp_path, "mlx-8", packs)
    made = backend_of(backend)
    model = FAMILY.load_model(packed, made)
    check_twin(run(model, made, requests), run(FAMILY.load_model(twin, made), made, requests))
    name = "model.layers.1.self_attn.qkv_proj.weight"
    joined, parts = model._weights[name], model._weights[name].parts
    assert len(parts) == 3
    assert joined.nbytes == sum(part.nbytes for part in parts)
    table = model._weights["model.embed_tokens.weight"]
    assert table.nbytes < 512 * 64 * 2
    ids = made.ops.array(np.array([[3, 500], [7, 3]]))
    wide = FAMILY.load_model(twin, made)._weights["model.embed_tokens.weight"]
    np.testing.assert_allclose(
        made.ops.numpy(made.ops.take(table, ids)), made.ops.numpy(wide[ids]), rtol=1e-6
    )


@pytest.mark.parametrize("backend", ["cpu", "mlx"])
def test_float_weights_are_widened_as_they_load(backend: str, tmp_path: Path) -> None:
    if backend == "mlx":
        pytest.importorskip("mlx")
    packed, twin = write_pair(tmp_path, "awq")
    made = open_backend(backend, "float32", "float")
    found = FAMILY.load_model(packed, made)._weights
    expected = FAMILY.load_model(twin, made)._weights
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        assert np.array_equal(made.ops.numpy(weight), made.ops.numpy(expected[name]))


@pytest.mark.parametrize("name", ["gptq-4", "fp8-blocks", "gptq-8-act-order"])
def test_the_plan_counts_what_packed_weights_take(name: str, tmp_path: Path) -> None:
    packed, twin = write_pair(tmp_path, name)
    for backend in (torch_backend("cpu", "float32"), backend_of("mlx")):
        config = EngineConfig(kv_bytes=1 << 20)
        folders = {"packed": packed, "twin": twin}
        plan = plan_folders(folders, backend, config, "auto")
        for served, folder in folders.items():
            model = FAMILY.load_model(folder, backend)
            taken = sum(weight.nbytes for weight in model._weights.values())
            # joined weights have one order of inputs, and one table
            assert taken <= plan.share_of(served).weight_bytes <= taken * 1.03


# As docs/models.md has it: what our kernels multiply, where they read 8-bit floats.
# The blocks of 8-bit floats that are drawn do not divide the inputs.
WITHOUT_KERNEL = ("act-order", "nf4", "fp4", "fp8-blocks")
CASES = [
    (name, not any(part in name for part in WITHOUT_KERNEL), name in KEPT_BY_MLX)
    for name in FORMATS
]
BLOCKS = [(kind, True, kind != "Q6_K") for kind in BLOCK_FORMATS]


@pytest.mark.parametrize(("name", "cuda", "mlx"), CASES + BLOCKS)
def test_each_backend_keeps_what_the_table_says(
    name: str, cuda: bool, mlx: bool, tmp_path: Path
) -> None:
    if name in BLOCK_FORMATS:
        forms = [BLOCK_FORMATS[name].form(512, 768)]
    else:
        packer, config = FORMATS[name]
        weight = {"layers.0.w.weight": random_weights({"w": (64, 128)}, 1)["w"]}
        write(tmp_path, packed_checkpoint(weight, packer, config), {})
        forms = [w.form for _, w in read_tensors(tmp_path, {"layers.0.w.weight": (64, 128)}, "pt")]
    assert [has_kernel(form, has_fp8=True) for form in forms] == [cuda]
    assert [TorchOps().keeps_packed(form) for form in forms] == [True]
    if HAS_MLX:
        assert [backend_of("mlx").ops.keeps_packed(form) for form in forms] == [mlx]
