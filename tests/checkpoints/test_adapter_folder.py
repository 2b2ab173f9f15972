"""Adapters that are not plain LoRA of known modules are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from izwi.checkpoints.adapter_folder import adapter_ref, check_adapter, read_adapter
from izwi.errors import CheckpointError
from tests.models.adapter_files import draw_adapter, write_adapter

ADAPTABLE: dict[str, tuple[int, ...]] = {
    "model.layers.0.self_attn.q_proj.weight": (6, 8),
    "model.layers.0.mlp.down_proj.weight": (8, 12),
}
Q = "base_model.model.model.layers.0.self_attn.q_proj"


def test_scales_are_alpha_over_rank_or_its_root(tmp_path: Path) -> None:
    tensors = draw_adapter(ADAPTABLE, 0)
    for config, scale in (({}, 6 / 4), ({"use_rslora": True}, 6 / 2), ({"lora_alpha": 1}, 1 / 4)):
        found = read_adapter(write_adapter(tmp_path / "a", tensors, **config), ADAPTABLE)
        assert found.keys() == ADAPTABLE.keys()
        update = found["model.layers.0.self_attn.q_proj.weight"]
        np.testing.assert_array_equal(update.down, tensors[f"{Q}.lora_A.weight"])
        np.testing.assert_allclose(update.up, tensors[f"{Q}.lora_B.weight"] * scale, rtol=1e-6)


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported: 'LORA' is"),
    ({"use_dora": True}, "use_dora = True is not supported"),
    ({"bias": "all"}, "bias = 'all' is not supported"),
    ({"lora_bias": True}, "lora_bias = True is not supported"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save = .'lm_head'. is not supported"),
    ({"rank_pattern": {"q_proj": 2}}, "rank_pattern = .* is not supported"),
    ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern = .* is not supported"),
    ({"layer_replication": [[0, 1]]}, "layer_replication = .* is not supported"),
    ({"fan_in_fan_out": True}, "fan_in_fan_out = True is not supported"),
    ({"trainable_token_indices": [3]}, "trainable_token_indices = .* is not supported"),
    ({"target_parameters": ["x"]}, "target_parameters = .* is not supported"),
    ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4' is not supported, because it"),
    ({"r": 0}, "r must be a positive integer, at most 4096, got 0"),
    ({"r": True}, "r must be a positive integer, at most 4096, got True"),
    ({"lora_alpha": "much"}, "lora_alpha must be a number, got 'much'"),
    ({"r": 10**400}, "r must be a positive integer, at most 4096, got 1000"),
    ({"r": 4097}, "r must be a positive integer, at most 4096, got 4097"),
    ({"r": 2**63}, "r must be a positive integer, at most 4096"),
    ({"r": 1e300}, "r must be a positive integer"),
    ({"r": [4] * 100_000}, "r must be a positive integer"),
    ({"lora_alpha": 10**400}, "lora_alpha must be a number, got 1000"),
    ({"lora_alpha": 1e300}, "lora_alpha must be a number, got 1e.300"),
    ({"lora_alpha": float("nan")}, "lora_alpha must be a number, got nan"),
    ({"lora_alpha": float("-inf")}, "lora_alpha must be a number, got -inf"),
    ({"modules_to_save": ["x" * 99] * 10_000}, "modules_to_save = .* is not supported"),
    ({"peft_type": "x" * 10**6}, "peft_type '.* is not supported"),
    ({"r": 8}, r"'base_model.*lora_A.weight' is \(4, .*, expected \(8, "),
]


@pytest.mark.parametrize(("config", "message"), CONFIGS)
def test_other_configurations_are_refused(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_adapter(tmp_path / "a", draw_adapter(ADAPTABLE, 0), **config)
    with pytest.raises(CheckpointError, match=message) as refused:
        check_adapter(folder, ADAPTABLE)
    assert len(str(refused.value)) < 1000


def wrong_tensors() -> dict[str, tuple[dict[str, Any], str]]:
    """Tensors with one fault each, and what the refusal says."""
    good = draw_adapter(ADAPTABLE, 0)
    lm_head = draw_adapter({"lm_head.weight": (5, 8)}, 0)
    up = good[f"{Q}.lora_B.weight"]
    return {
        "module": (good | lm_head, "module 'lm_head' cannot be adapted in this model, only "),
        "layer": (
            draw_adapter({"model.layers.7.self_attn.q_proj.weight": (6, 8)}, 0),
            "module 'model.layers.7.self_attn.q_proj' cannot be adapted",
        ),
        "dora": (good | {f"{Q}.lora_magnitude_vector": up[:, 0]}, "q_proj.lora_magnitude_vector'"),
        "embedding": (good | {f"{Q}.lora_embedding_A": up}, "q_proj.lora_embedding_A' is not"),
        "bias": (good | {f"{Q}.lora_B.bias": up[:, 0]}, "q_proj.lora_B.bias' is not supported"),
        "half": ({f"{Q}.lora_B.weight": up}, "q_proj.lora_A.weight' is missing"),
        "shape": (good | {f"{Q}.lora_B.weight": up[:-1].copy()}, r"is \(5, 4\), expected \(6, 4\)"),
        "dtype": (good | {f"{Q}.lora_B.weight": up.astype(np.int32)}, "is I32, expected F32 or"),
        "empty": ({}, "has no tensors"),
    }


@pytest.mark.parametrize("fault", wrong_tensors())
def test_other_tensors_are_refused(fault: str, tmp_path: Path) -> None:
    tensors, message = wrong_tensors()[fault]
    folder = write_adapter(tmp_path / "a", tensors)
    with pytest.raises(CheckpointError, match=message):
        check_adapter(folder, ADAPTABLE)


def test_broken_files_are_refused(tmp_path: Path) -> None:
    tensors = draw_adapter(ADAPTABLE, 0)
    folder = write_adapter(tmp_path / "a", tensors)
    tensors[f"{Q}.lora_B.weight"][0, 0] = np.nan
    write_adapter(folder, tensors)
    with pytest.raises(CheckpointError, match=r"q_proj\.lora_B\.weight' has values that are no"):
        read_adapter(folder, ADAPTABLE)
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        check_adapter(folder, ADAPTABLE)
    path.unlink()
    with pytest.raises(CheckpointError, match="are read from safetensors only"):
        check_adapter(folder, ADAPTABLE)
    with pytest.raises(CheckpointError, match="is not an adapter's folder"):
        adapter_ref("m:a", folder)


def test_the_digest_is_of_the_contents(tmp_path: Path) -> None:
    tensors = draw_adapter(ADAPTABLE, 0)
    first = adapter_ref("m:a", write_adapter(tmp_path / "a", tensors))
    same = adapter_ref("m:b", write_adapter(tmp_path / "b", tensors))
    other = adapter_ref("m:c", write_adapter(tmp_path / "c", tensors, lora_alpha=7))
    assert first.digest == same.digest != other.digest
    assert first.salt == same.salt != other.salt
    assert 0 <= first.salt < 1 << 63


@pytest.mark.parametrize(("value", "alpha"), [(np.nan, 1.0), (np.inf, 1.0), (3e38, 1e6)])
def test_numbers_that_are_none_are_refused(value: float, alpha: float, tmp_path: Path) -> None:
    tensors = draw_adapter(ADAPTABLE, 0)
    tensors[f"{Q}.lora_B.weight"][3, 2] = value
    folder = write_adapter(tmp_path / "a", tensors, lora_alpha=alpha)
    with pytest.raises(CheckpointError, match=r"q_proj.lora_B.weight' has values that are no"):
        read_adapter(folder, ADAPTABLE)


HEADS = {
    "long": (b"{" + b" " * 8, 2**30),
    "longest": (b"{}", 2**64 - 1),
    "17 MiB": (b"{}" + b" " * (17 << 20), 17 << 20),
    "cut off": (b"", None),
    "deep": (b'{"__metadata__":' + b"[" * 100_000, None),
    "overflow": (
        b'{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}',
        None,
    ),
    "too large": (
        b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}',
        None,
    ),
    "not a shape": (b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', None),
    "backwards": (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}', None),
}


@pytest.mark.parametrize("kind", HEADS)
def test_heads_that_lie_are_refused_before_they_are_read(kind: str, tmp_path: Path) -> None:
    head, size = HEADS[kind]
    folder = write_adapter(tmp_path / "a", draw_adapter(ADAPTABLE, 0))
    length = len(head) if size is None else size
    content = b"\0" * 5 if kind == "cut off" else length.to_bytes(8, "little") + head
    (folder / "adapter_model.safetensors").write_bytes(content)
    reason = r"its header has \d+ bytes" if size is not None else ""
    message = rf"adapter_model.safetensors is not a safetensors file: .*{reason}"
    with pytest.raises(CheckpointError, match=message):
        check_adapter(folder, ADAPTABLE)
