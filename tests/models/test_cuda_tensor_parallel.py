"""Models split over two GPUs: entries of one in float32, logits of one in bfloat16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from izwi.checkpoints.registry import family_of
from izwi.config import EngineConfig
from izwi.request.request import Request
from tests.models.kinds import KINDS, TEXTS, request_of
from tests.serve.split_engine import outputs, split, whole

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices"),
]
DEVICES = ("cuda:0", "cuda:1")
CONFIG = EngineConfig(kv_bytes=1 << 24, max_running=8)
NEAR = 0.15  # log probabilities in bfloat16, whose logits of some 10 are steps of 0.06 apart


def requests_to(folder: Path, *, logprobs: bool = False) -> list[Request]:
    family = family_of(folder)
    frontend = family.load_frontend(folder)
    made = [request_of(family, frontend, i) for i in range(len(TEXTS))]
    return [replace(request, logprobs=logprobs) for request in made]


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_float32_draws_the_entries_of_one_gpu(tmp_path: Path, name: str, graphs: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    folder = KINDS[name][1](tmp_path / "tiny")
    config, requests = replace_graphs(graphs), requests_to(folder)
    one = outputs(whole({"m": folder}, "cuda:0", "float32", config), requests)
    with split({"m": folder}, tmp_path, DEVICES, "float32", config) as made:
        two = outputs(made.engine, requests)
    for request_id, (entries, pcm, _) in one.items():
        assert two[request_id][0] == entries
        np.testing.assert_allclose(two[request_id][1], pcm, atol=1e-4)


def replace_graphs(graphs: bool) -> EngineConfig:
    return EngineConfig(kv_bytes=CONFIG.kv_bytes, max_running=CONFIG.max_running, graphs=graphs)


@pytest.mark.parametrize("name", ["chat", "chat, untied", "asr"])
def test_bfloat16_has_the_log_probabilities_of_one_gpu(tmp_path: Path, name: str) -> None:
    folder = KINDS[name][1](tmp_path / "tiny")
    requests = requests_to(folder, logprobs=True)
    one = outputs(whole({"m": folder}, "cuda:0", "bfloat16", CONFIG), requests)
    with split({"m": folder}, tmp_path, DEVICES, "bfloat16", CONFIG) as made:
        two = outputs(made.engine, requests)
    compared = 0
    for request_id, (entries, _, logprobs) in one.items():
        others, found = two[request_id][0], two[request_id][2]
        for place, entry in enumerate(entries):
            if place >= len(others) or others[place] != entry:
                break  # the next ones follow other tokens
            assert abs(found[place] - logprobs[place]) < NEAR
            compared += 1
    assert compared > 20


def test_bfloat16_speaks(tmp_path: Path) -> None:
    folder = KINDS["tts"][1](tmp_path / "tiny")
    with split({"m": folder}, tmp_path, DEVICES, "bfloat16", CONFIG) as made:
        found = outputs(made.engine, requests_to(folder))
    for entries, pcm, _ in found.values():
        assert entries
        assert np.isfinite(pcm).all()
        assert np.abs(pcm).max() > 0
