"""Models split over two GPUs: entries of one in float32, logits of one in bfloat16.

Rank 0 runs in a process of its own (`python -m tests.models.test_cuda_tensor_parallel`), because
the library between GPUs does not leave a process before it ends.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from izwi.checkpoints.registry import family_of
from izwi.config import EngineConfig
from izwi.request.request import Request
from tests.models.kinds import KINDS, TEXTS, request_of
from tests.serve.split_engine import Output, SplitEngine, outputs, whole

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices"),
]
DEVICES = os.environ.get("SPLIT_DEVICES", "cuda:0,cuda:1").split(",")
TEXT_KINDS = ("chat", "chat, untied", "asr")  # report log probabilities
# Of log probabilities in bfloat16, whose logits of some 10 are steps of 0.06 apart. On a CPU, those
# of two processes and of one differ by up to 0.13.
NEAR = 0.3


def requests_to(folders: Mapping[str, Path]) -> list[Request]:
    made = []
    for name, folder in folders.items():
        family = family_of(folder)
        frontend = family.load_frontend(folder)
        for i in range(len(TEXTS)):
            named = {"model": name, "request_id": f"{name} {i}", "logprobs": name in TEXT_KINDS}
            made.append(replace(request_of(family, frontend, i), **named))
    return made


def config(graphs: bool) -> EngineConfig:
    return EngineConfig(kv_bytes=1 << 26, max_running=8, graphs=graphs)


def run_split(folders: Mapping[str, Path], where: Path, dtype: str, graphs: bool) -> None:
    """Write what two GPUs give."""
    _round_as_written()
    made = SplitEngine(folders, where, DEVICES, dtype, config(graphs))
    found = outputs(made.engine, requests_to(folders))
    (where / "found").write_bytes(pickle.dumps(found))


def _round_as_written() -> None:
    """Compute in float32 where it says so, also in the convolutions of rank 0's encoders."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


class Both:
    """What one GPU gives, and what two give."""

    def __init__(self, where: Path, dtype: str, graphs: bool):
        _round_as_written()
        folders = {name: write(where / name) for name, (_, write) in KINDS.items()}
        self.one = outputs(whole(folders, DEVICES[0], dtype, config(graphs)), requests_to(folders))
        command = [sys.executable, "-m", "tests.models.test_cuda_tensor_parallel"]
        subprocess.run([*command, str(where), dtype, str(int(graphs))], check=True, timeout=300)
        self.two: dict[str, Output] = pickle.loads((where / "found").read_bytes())

    def of_kind(self, kind: str) -> Iterator[tuple[Output, Output]]:
        """The three requests to a kind of model, on one GPU and on two."""
        for i in range(len(TEXTS)):
            yield self.one[f"{kind} {i}"], self.two[f"{kind} {i}"]


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(tmp_path_factory.mktemp("plain"), "float32", graphs=False)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(tmp_path_factory.mktemp("graphs"), "float32", graphs=True)


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(tmp_path_factory.mktemp("rounded"), "bfloat16", graphs=True)


@pytest.mark.parametrize("how", ["launched", "captured"])
@pytest.mark.parametrize("kind", KINDS)
def test_float32_draws_the_entries_of_one_gpu(
    kind: str, how: str, request: pytest.FixtureRequest
) -> None:
    both: Both = request.getfixturevalue(how)
    for (entries, pcm, _), (others, their_pcm, _) in both.of_kind(kind):
        assert others == entries
        np.testing.assert_allclose(their_pcm, pcm, atol=1e-4)


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_bfloat16_has_the_log_probabilities_of_one_gpu(kind: str, rounded: Both) -> None:
    compared = 0
    for (entries, _, logprobs), (others, _, found) in rounded.of_kind(kind):
        assert abs(found[0] - logprobs[0]) < NEAR
        for place, (entry, other) in enumerate(zip(entries, others, strict=False)):
            if other != entry:
                break  # the next ones follow other tokens
            assert abs(found[place] - logprobs[place]) < NEAR
            compared += 1
    assert compared > 10


@pytest.mark.parametrize("kind", ["tts", "tts, cloning"])
def test_bfloat16_speaks(kind: str, rounded: Both) -> None:
    for _, (entries, pcm, _) in rounded.of_kind(kind):
        assert entries
        assert np.isfinite(pcm).all()
        assert np.abs(pcm).max() > 0


if __name__ == "__main__":
    place, dtype, graphs = Path(sys.argv[1]), sys.argv[2], bool(int(sys.argv[3]))
    run_split({name: place / name for name in KINDS}, place, dtype, graphs)
    os._exit(0)
