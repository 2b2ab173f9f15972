"""Every family loads packed checkpoints, and gives what their widened twins give."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from izwi.backends.torch.backend import torch_backend
from izwi.backends.torch.grouped import GroupedWeight, JoinedWeight
from izwi.checkpoints.folder import read_json
from tests.backends.test_families import CASES, outputs
from tests.checkpoints.formats.packing import FORMATS, packed_checkpoint, write, write_twin

BY_DAY = ("asr",)


def write_pair(kind: str, name: str, folder: Path) -> tuple[Path, Path]:
    """Pack all layers of a tiny checkpoint, those of audio encoders included; and its twin."""
    plain = CASES[kind][1](folder / "plain")
    packer, config = FORMATS[name]
    weights = load_file(plain / "model.safetensors")
    made = packed_checkpoint(
        weights, packer, config, lambda name: ".layers." in name and name.endswith(".weight")
    )
    packed, twin = (shutil.copytree(plain, folder / which) for which in ("packed", "twin"))
    return write(packed, made, read_json(plain / "config.json")), write_twin(twin, made)


@pytest.mark.parametrize("backend", ["torch", pytest.param("mlx", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["fp8-blocks", pytest.param("gptq-4", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind", [k if k in BY_DAY else pytest.param(k, marks=pytest.mark.slow) for k in CASES]
)
def test_packed_layers_give_what_their_twin_gives(
    kind: str, name: str, backend: str, tmp_path: Path
) -> None:
    packed, twin = write_pair(kind, name, tmp_path)
    expected = outputs(kind, twin, backend, 3)
    found = outputs(kind, packed, backend, 3)
    assert found.keys() == expected.keys()
    for request, (entries, pcm) in found.items():
        assert entries == expected[request][0]
        np.testing.assert_allclose(pcm, expected[request][1], atol=1e-4)
    if backend == "torch":
        model = CASES[kind][0].load_model(packed, torch_backend("cpu", "float32"))
        kept = [n for n, w in model._weights.items() if isinstance(w, GroupedWeight | JoinedWeight)]
        sizes = CASES[kind][0].read_sizes(packed)
        assert kept
        assert not any("tower" in name or "codec" in name for name in kept)
        assert sizes.packable
