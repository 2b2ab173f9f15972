"""The report on GPUs, on machines with and without one."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from izwi.backends.torch.devices import (
    CudaDevice,
    cuda_devices,
    hide_other_gpus,
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


@pytest.mark.parametrize(
    ("visible", "device", "name", "left"),
    [
        (None, "cuda:1", "cuda:0", "1"),
        ("GPU-5e1f,GPU-77ab", "cuda:1", "cuda:0", "GPU-77ab"),
        ("6,3", "cuda:0", "cuda:0", "6"),
        ("6,3", "cuda:2", "cuda:2", "6,3"),
        ("6,3", "cuda", "cuda", "6,3"),
        ("6,3", "cuda:x", "cuda:x", "6,3"),
        ("6,3", "cpu", "cpu", "6,3"),
    ],
)
def test_process_sees_no_other_gpu_than_its_own(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, device: str, name: str, left: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert hide_other_gpus(device) == name
    assert os.environ["CUDA_VISIBLE_DEVICES"] == left


def test_gpus_that_a_process_already_uses_stay_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,3")
    assert hide_other_gpus("cuda:1") == "cuda:1"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "6,3"


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
