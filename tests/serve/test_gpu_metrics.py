"""A server on a GPU says what the GPU does, and what cannot be seen on a CPU."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from tests.api.served import served

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

MODEL = "izwi-tiny-tts"
OPTIONS = ("--device", "cuda:0", "--dtype", "bfloat16", "--model", MODEL, "--kv-mib", "256")
# Of the memory plan; tests/serve/test_every_metric.py names them as 0 on a CPU.
PLANNED = ("weight_bytes", "state_bytes", "graph_bytes", "shared_bytes")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    pytest.importorskip("pynvml")
    with served(tmp_path_factory.mktemp("gpu"), *OPTIONS) as running:
        yield running


def read(server):
    """Return the most that each family says, by name, and the text."""
    text = httpx.get(server.url + "/metrics", timeout=60).raise_for_status().text
    families = text_string_to_metric_families(text)
    return {one.name: [sample.value for sample in one.samples] for one in families}, text


def speak(server, seed):
    ask = {"model": MODEL, "voice": "amber", "response_format": "pcm", "seed": seed}
    ask |= {"input": "The house is near the river and the road is long."}
    return httpx.post(f"{server.url}/v1/audio/speech", json=ask, timeout=120).status_code


def test_the_gpu_is_seen_at_work(server, tmp_path):
    idle, _ = read(server)
    most_busy, text, until_s = 0.0, "", time.monotonic() + 8
    with ThreadPoolExecutor(32) as pool:
        while time.monotonic() < until_s:
            spoken = [pool.submit(speak, server, seed) for seed in range(64)]
            while not all(one.done() for one in spoken):
                now, text = read(server)
                most_busy = max(most_busy, *now["hw_gpu_utilization_ratio"])
                time.sleep(0.1)
            assert {one.result() for one in spoken} == {200}
    (tmp_path / "metrics.txt").write_text(f"# most busy: {most_busy}\n{text}")
    assert 0 < most_busy <= 1
    # NVML names all GPUs of the machine, also those that this process may not use
    assert len(now["hw_gpu_memory_limit_bytes"]) >= torch.cuda.device_count()
    used, limit = (max(now[f"hw_gpu_memory_{name}_bytes"]) for name in ("usage", "limit"))
    assert sum(now["izwi_engine_weight_bytes"]) < used < limit
    assert 5 < max(now["hw_power_watts"]) < 2000
    for name in PLANNED:
        assert max(now[f"izwi_engine_{name}"]) > 0, name
    assert now["izwi_engine_graph_bytes"] == idle["izwi_engine_graph_bytes"], "a plan stays"
