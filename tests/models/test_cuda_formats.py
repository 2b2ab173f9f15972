"""A checkpoint in each published format answers on a GPU as its widened twin there."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch

from izwi.backends.torch.backend import torch_backend
from izwi.backends.torch.grouped import JoinedWeight
from izwi.backends.torch.quantized import QuantizedWeight
from izwi.request.request import Request
from izwi_models.qwen3_chat import FAMILY
from tests.checkpoints.formats.packing import FORMATS
from tests.models.test_published_formats import (
    WITHOUT_KERNEL,
    requests,
    run,
    write_pair,
)

__all__ = ["requests"]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_packed_weights_answer_as_their_twin(
    name: str, requests: list[Request], tmp_path: Path
) -> None:
    packed, twin = write_pair(tmp_path, name)
    backend = torch_backend("cuda", "float32")
    model = FAMILY.load_model(packed, backend)
    found = run(model, backend, requests)
    kept = [w for w in model._weights.values() if isinstance(w, QuantizedWeight | JoinedWeight)]
    assert len(kept) in (0, 2 * 4)
    assert kept or any(part in name for part in WITHOUT_KERNEL), "it was widened"
    del model, backend, kept
    gc.collect()  # its graphs, which must not go while others are captured
    other = torch_backend("cuda", "float32")
    expected = run(FAMILY.load_model(twin, other), other, requests)
    for (ids, logprobs), (others, theirs) in zip(found, expected, strict=True):
        assert ids == others
        np.testing.assert_allclose(logprobs, theirs, atol=5e-3)
