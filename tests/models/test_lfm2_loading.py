"""LFM2-Audio's folders: both published layouts load, and errors name what is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.errors import CheckpointError
from izwi_models import FAMILIES
from izwi_models.lfm2_audio import FAMILY
from izwi_models.lfm2_audio import model as lfm2_model
from izwi_models.lfm2_audio.audio_config import MimiConfig
from tests.models.loading import load_checkpoint
from tests.models.tiny_lfm2_audio import MIMI, write_tiny_lfm2_audio

BACKEND = torch_backend("cpu", "float32")
MIMI_FILE = "tokenizer-e351c8d8-checkpoint125.safetensors"


@pytest.fixture(scope="module")
def newer(tmp_path_factory) -> Path:
    return write_tiny_lfm2_audio(tmp_path_factory.mktemp("tiny") / "newer")


@pytest.fixture
def folder(newer, tmp_path) -> Path:
    return Path(shutil.copytree(newer, tmp_path / "copy"))


@pytest.fixture
def _small_mimi(monkeypatch) -> None:
    def small(num_codebooks: int) -> MimiConfig:
        return MimiConfig(**MIMI, num_codebooks=num_codebooks)

    monkeypatch.setattr(lfm2_model, "MimiConfig", small)


def test_the_family_is_found_by_the_class_that_was_saved(newer):
    assert FAMILY in FAMILIES
    registry = Registry(BACKEND)
    name = registry.load(str(newer))
    frontend: Any = registry.model(name)
    model: Any = registry.models[name]
    assert model.tracks[1].codec.lookahead_samples == 480
    assert frontend.speakers


@pytest.mark.usefixtures("_small_mimi")
def test_the_older_layout_has_mimi_beside_its_weights(tmp_path):
    folder = write_tiny_lfm2_audio(tmp_path / "older", mimi=True)
    model: Any = load_checkpoint(FAMILY, folder, BACKEND)
    assert model.model.tracks[1].codec.lookahead_samples == 0
    assert model.model.tracks[1].silent_ids == {2048}
    assert model.frontend.speakers == ()
    (folder / MIMI_FILE).unlink()
    with pytest.raises(CheckpointError, match="no codec"):
        load_checkpoint(FAMILY, folder, BACKEND)


def test_tensors_unused_in_generation_are_accepted(folder):
    path = folder / "model.safetensors"
    weights = load_file(path)
    frames = weights["audio_embedding.embedding.weight"]
    more = {
        "audio_embedding.to_logits.weight": frames,
        "audio_embedding.embedding_norm.weight": np.ones(frames.shape[1], np.float32),
        "codebook_offsets": np.arange(8),
        "audio_loss_weights": np.ones(8, np.float32),
        "depth_embeddings.3.to_logits.weight": weights["depth_embeddings.3.embedding.weight"],
    }
    save_file(weights | more, path)
    model: Any = load_checkpoint(FAMILY, folder, BACKEND)
    assert not {"codebook_offsets", "audio_embedding.to_logits.weight"} & set(model.model._weights)
    save_file(weights | {"audio_loss_weights": np.ones(7, np.float32)}, path)
    with pytest.raises(CheckpointError, match=r"'audio_loss_weights' is \(7,\)"):
        load_checkpoint(FAMILY, folder, BACKEND)


@pytest.mark.parametrize(
    "name",
    [
        "lfm.layers.0.conv.conv.weight",
        "lfm.layers.4.self_attn.k_layernorm.weight",
        "depthformer.layers.1.operator.qkv_proj.weight",
        "depth_linear.bias",
        "conformer.layers.1.conv.batch_norm.running_var",
        "audio_adapter.model.3.bias",
    ],
)
def test_every_tensor_is_checked_by_name_and_shape(folder, name):
    path = folder / "model.safetensors"
    weights = load_file(path)
    save_file({other: w for other, w in weights.items() if other != name}, path)
    with pytest.raises(CheckpointError, match=f"missing tensor '{name}'"):
        load_checkpoint(FAMILY, folder, BACKEND)
    save_file(weights | {name: np.zeros((3, 5), np.float32)}, path)
    with pytest.raises(CheckpointError, match=f"'{name}' is \\(3, 5\\)"):
        load_checkpoint(FAMILY, folder, BACKEND)
    save_file(weights | {f"{name}.more": weights[name]}, path)
    with pytest.raises(CheckpointError, match=f"unexpected tensor '{name}.more'"):
        load_checkpoint(FAMILY, folder, BACKEND)


def test_the_codecs_tensors_are_checked(folder):
    path = folder / "audio_detokenizer" / "model.safetensors"
    weights = load_file(path)
    del weights["lin.bias"]
    save_file(weights, path)
    with pytest.raises(CheckpointError, match=r"lin\.bias"):
        load_checkpoint(FAMILY, folder, BACKEND)


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        ("config.json", {"encoder": {}}, "encoder"),
        ("config.json", {"preprocessor": {"sample_rate": 8000}}, "preprocessor"),
        ("config.json", {"depthformer": {"layers": 2, "dim": 128}}, "tie"),
        ("audio_detokenizer/config.json", {"conv_bias": True}, "conv_bias"),
    ],
)
def test_a_configuration_that_does_not_fit_is_named(folder, path, change, message):
    values = json.loads((folder / path).read_text())
    (folder / path).write_text(json.dumps(values | change))
    with pytest.raises(CheckpointError) as reported:
        load_checkpoint(FAMILY, folder, BACKEND)
    assert message in str(reported.value)


def test_the_tokenizer_must_fit_the_embedding(folder):
    values = json.loads((folder / "config.json").read_text())
    values["lfm"]["vocab_size"] = 300
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="tokenizer has 408 ids"):
        load_checkpoint(FAMILY, folder, BACKEND)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        load_checkpoint(FAMILY, folder, BACKEND)
