"""Calibrated 4 bits give logits of unseen texts closer to the model's than rounding to nearest."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from izwi.arrays import Float32
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.awq_writer import rounded
from izwi.checkpoints.description import describe
from izwi.checkpoints.registry import embedded
from izwi.checkpoints.weight_files import read_tensors
from izwi.errors import CheckpointError, InvalidRequest
from izwi.model.scalings import InputScaling
from izwi.runner.quantizing import quantize_checkpoint
from izwi_api.cli.main import app
from izwi_models.qwen3_chat import FAMILY
from izwi_models.qwen3_chat.config import read_config, tensor_shapes
from tests.models.tiny_chat import UNTIED, write_tiny_chat

SIZES = UNTIED | {"hidden_size": 64, "intermediate_size": 128}
TEXTS = [
    "The rain came down on the old town all night, and nobody slept.",
    "She asked whether the train to the coast would be late again.",
    "Numbers such as 12, 345 and 6789 are read in many ways.",
    "What do you think about the weather in the mountains?",
]
HELD_OUT = [
    "He put the letters on the table and left without a word.",
    "Can you tell me how far it is from here to the harbour?",
    "In 1987 the bridge was closed for repairs.",
    "A language model reads a prompt and then writes one token after the other.",
    "My sister keeps bees behind the house and sells the honey on Saturdays.",
    "If you mix blue and yellow paint, you get green.",
    "The committee has not decided yet; it will meet again in a month.",
    "Where did you put the keys? I looked everywhere.",
    "Water boils at a lower temperature on a mountain than at the sea.",
    "Please write a short letter to my landlord about the broken heating.",
    "They walked along the river until the lights of the city disappeared.",
]


def with_outliers(folder: Path) -> Path:
    """Write a checkpoint whose norms make some channels fifty times as large as the others."""
    base = write_tiny_chat(folder, SIZES)
    weights = load_file(base / "model.safetensors")
    rng = np.random.default_rng(5)
    for name, weight in weights.items():
        if name.endswith("layernorm.weight"):
            large = rng.choice(len(weight), 3, replace=False)
            weight[large] *= 50
    save_file(weights, base / "model.safetensors")
    return base


def logits(folder: Path, texts: Sequence[str]) -> Float32:
    """Logits of all positions of some texts."""
    backend = torch_backend("cpu", "float32")
    model: Any = FAMILY.load_model(folder, backend)
    found, ops = [], backend.ops
    with backend.running():
        for text in texts:
            ids = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
            x = model.embed_inputs(ops.array(ids[:, None]))
            hidden = model.run(x[None], ops.dense_context(1, len(ids)))
            found.append(ops.numpy(ops.linear(hidden[0], model._head)))
    return np.concatenate(found)


def errors_of(base: Path, folder: Path, group: int) -> tuple[float, float]:
    """Mean squared errors of logits of unseen texts: rounded to nearest, calibrated."""
    backend = torch_backend("cpu", "float32")
    quantize_checkpoint(base, folder / "nearest", [], group, backend)
    found = quantize_checkpoint(base, folder / "calibrated", TEXTS, group, backend)
    assert found.calibrated < found.nearest
    whole = logits(base, HELD_OUT)
    nearest, calibrated = (
        float(np.square(logits(folder / kind, HELD_OUT) - whole).mean())
        for kind in ("nearest", "calibrated")
    )
    print(nearest, calibrated)  # for docs/models.md
    return nearest, calibrated


def test_unseen_texts_lose_less_where_some_channels_are_large(tmp_path: Path) -> None:
    nearest, calibrated = errors_of(with_outliers(tmp_path / "chat"), tmp_path, 32)
    assert calibrated < 0.6 * nearest
    assert describe(tmp_path / "calibrated").title == "AWQ, 4 bits in groups of 32"


@pytest.mark.slow
def test_the_embedded_model_loses_less(tmp_path: Path) -> None:
    nearest, calibrated = errors_of(embedded()["izwi-tiny-chat"], tmp_path, 32)
    assert calibrated < nearest


def test_scales_alone_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is multiplied into weights is divided before: without rounding the model is the same."""
    from izwi.checkpoints import awq_writer
    from izwi.runner import quantizing

    kept: dict[str, Float32] = {}

    def keep(folder: Path, source: Path, weights: dict[str, Float32], *rest: Any) -> None:
        del rest
        shutil.copytree(source, folder)
        save_file(weights, folder / "model.safetensors")
        kept.update(weights)

    monkeypatch.setattr(quantizing, "write_awq", keep)
    base, backend = with_outliers(tmp_path / "chat"), torch_backend("cpu", "float32")
    quantize_checkpoint(base, tmp_path / "scaled", TEXTS, 32, backend)
    assert awq_writer.write_awq is not keep
    before = load_file(base / "model.safetensors")
    changed = [name for name in before if not np.array_equal(before[name], kept[name])]
    assert {name.split(".", 3)[-1] for name in changed} >= {
        "input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.q_proj.weight",
        "self_attn.v_proj.weight", "self_attn.o_proj.weight", "mlp.up_proj.weight",
        "mlp.down_proj.weight",
    }  # fmt: skip
    expected = logits(base, HELD_OUT)
    np.testing.assert_allclose(logits(tmp_path / "scaled", HELD_OUT), expected, atol=1e-3)


def test_files_have_the_rounded_numbers(tmp_path: Path) -> None:
    base = write_tiny_chat(tmp_path / "chat", SIZES)
    quantize_checkpoint(base, tmp_path / "out", [], 16, torch_backend("cpu", "float32"))
    before, config = load_file(base / "model.safetensors"), read_config(tmp_path / "out")
    shapes = tensor_shapes(config, with_head=True)
    found = dict(read_tensors(tmp_path / "out", shapes, "pt"))
    name = "model.layers.2.mlp.down_proj.weight"
    np.testing.assert_array_equal(found[name].wide(), rounded(before[name], 16).wide())
    step = np.ptp(before[name].reshape(-1, 16), axis=1).max() / 15
    assert np.abs(found[name].wide() - before[name]).max() < step
    norm = "model.norm.weight"
    np.testing.assert_array_equal(found[norm].numpy(), before[norm])


def test_what_cannot_be_quantized_is_refused(tmp_path: Path) -> None:
    base, backend = write_tiny_chat(tmp_path / "chat", SIZES), torch_backend("cpu", "float32")
    for source, group, error, message in (
        (base, 48, InvalidRequest, "its inputs are no whole groups of 48"),
        (embedded()["izwi-tiny-asr"], 32, InvalidRequest, "Qwen3 chat can"),
    ):
        with pytest.raises(error, match=message):
            quantize_checkpoint(source, tmp_path / "out", [], group, backend)
    quantize_checkpoint(base, tmp_path / "out", [], 32, backend)
    with pytest.raises(InvalidRequest, match="has files already"):
        quantize_checkpoint(base, tmp_path / "out", [], 32, backend)
    with pytest.raises(CheckpointError, match="is quantized already"):
        quantize_checkpoint(tmp_path / "out", tmp_path / "twice", [], 32, backend)


def test_scales_of_shared_values_are_the_same() -> None:
    scaling = InputScaling("o", ("o",), "v", block=2, repeats=3)
    sizes = np.arange(12, dtype=np.float32)
    shared = scaling.shared(sizes)
    assert shared.tolist() == [2, 3] * 3 + [8, 9] * 3
    assert scaling.of_source(shared).tolist() == [2, 3, 8, 9]


@pytest.mark.slow
def test_the_command_writes_a_folder(tmp_path: Path) -> None:
    base = write_tiny_chat(tmp_path / "chat", SIZES)
    texts = tmp_path / "texts.txt"
    texts.write_text("\n\n".join(TEXTS[:2]) + "\n\n\n", encoding="utf-8")
    ask = ["quantize", str(base), str(tmp_path / "out"), "--group", "32"]
    made = CliRunner().invoke(app, [*ask, "--calibrate", str(texts)])
    assert made.exit_code == 0, made.output
    assert "AWQ, 4 bits in groups of 32\terror of products on 2 texts: 0.0" in made.output
    texts.write_text("\n\n")
    for more, message in (
        (["--calibrate", str(texts)], "has no text"),
        (["--calibrate", str(tmp_path / "none")], "cannot read"),
        (["--bits", "3"], "--bits must be 4, got 3"),
    ):
        refused = CliRunner().invoke(app, [*ask, *more])
        assert refused.exit_code != 0
        assert message in refused.output.replace("\n", " ")
