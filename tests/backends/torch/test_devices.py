"""The report on GPUs, on machines with and without one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from izwi.backends.torch.devices import (
    CudaDevice,
    cuda_devices,
    is_built_for_gpus,
    kept_kernels,
    product_name,
)


def test_every_gpu_is_listed_with_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = {0: (3, 8), 1: (5, 16)}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda index: SimpleNamespace(name=f"GPU {index}", major=9, minor=index),
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", memory.__getitem__)
    assert cuda_devices() == [
        CudaDevice("cuda:0", "GPU 0", (9, 0), 3, 8),
        CudaDevice("cuda:1", "GPU 1", (9, 1), 5, 16),
    ]
    monkeypatch.setattr(torch.cuda, "get_device_name", "the product of {}".format)
    assert product_name("cuda:1") == "the product of cuda:1"
    assert product_name("cpu") == "cpu"


@pytest.mark.parametrize(("cuda", "hip"), [(None, None), ("13.0", None), (None, "7.0")])
def test_a_build_for_gpus_is_one_with_cuda_or_rocm(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, hip: str | None
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert is_built_for_gpus() == (cuda is not None or hip is not None)


def test_kept_kernels_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    assert kept_kernels() == (tmp_path, 0)
    for name in ("a/k.cubin", "b/k.cubin", "b/k.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert kept_kernels() == (tmp_path, 2)
