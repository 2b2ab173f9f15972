"""Adapters on a GPU answer as merged weights do, by captured steps whose weights have norms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from izwi.backends.torch.backend import torch_backend
from izwi.engine.engine import Engine
from tests.models.test_adapters import Files, asked, engine_of, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Drawn once."""
    return Files(tmp_path_factory.mktemp("adapters"))


def captured_with_adapters(engine: Engine) -> int:
    """How many captured decodes take adapters."""
    graphs: Any = engine.runners[0]._graphs
    return sum(kind.adapted for rows in graphs.decodes._decodes.values() for kind in rows.graphs)


@pytest.mark.parametrize("weights", ["auto", "int8"])
def test_a_mixed_batch_answers_as_merged_weights_do(files: Files, weights: str) -> None:
    """Quantized weights keep their norms; they are compared with answers of the request alone."""
    backend = torch_backend("cuda", "float32", weights)
    engine = engine_of(files.base, backend)
    assert captured_with_adapters(engine) == 0
    cases = [(prompt, name) for prompt in range(2) for name in files.refs]
    together = run(engine, [asked(files, *case) for case in cases])
    assert captured_with_adapters(engine) > 0
    for name, folder in files.folders.items():
        other = engine_of(folder if weights == "auto" else files.base, backend)
        for case, found in zip(cases, together, strict=True):
            if case[1] == name:
                adapter = "" if weights == "auto" else name
                ids, logprobs = run(other, [asked(files, case[0], adapter)])[0]
                assert found[0] == ids
                np.testing.assert_allclose(found[1], logprobs, atol=2e-3)


def test_bfloat16_runs(files: Files) -> None:
    engine = engine_of(files.base, torch_backend("cuda", "bfloat16"))
    cases = [(prompt, name) for prompt in range(2) for name in files.refs]
    found = run(engine, [asked(files, *case) for case in cases])
    exact = run(
        engine_of(files.base, torch_backend("cpu", "float32")),
        [asked(files, *case) for case in cases],
    )
    assert len({tuple(ids) for ids, _ in found}) == len(cases)
    # the first ids, before any has turned out otherwise
    near = [abs(a[1][0] - b[1][0]) for a, b in zip(found, exact, strict=True) if a[0][0] == b[0][0]]
    assert len(near) >= len(cases) // 2
    assert max(near) < 0.3
