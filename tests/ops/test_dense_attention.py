"""Attention without a cache over rows of several lengths."""

from __future__ import annotations

import numpy as np
import pytest

from izwi.ops.protocol import AttentionSpec
from tests.ops.tables import each_backend, normal, table

SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, rope_theta=10_000.0)
LENGTHS = (13, 5, 1, 12)


@each_backend
@pytest.mark.parametrize("on_device", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_a_padded_row_attends_as_it_does_alone(causal: bool, on_device: bool, backend: str) -> None:
    ops = table(backend)
    q = ops.array(normal(len(LENGTHS), max(LENGTHS), 32, seed=1))
    k, v = (ops.array(normal(len(LENGTHS), max(LENGTHS), 16, seed=seed)) for seed in (2, 3))
    lengths = np.array(LENGTHS, np.int64)
    context = ops.dense_context(
        *q.shape[:2], causal=causal, key_lengths=ops.array(lengths) if on_device else lengths
    )
    # two layers of one context: the mask is made once
    padded = [
        ops.numpy(ops.attention(q, k, v, spec=SPEC, context=context, layer=n)) for n in range(2)
    ]
    assert np.array_equal(*padded)
    for row, length in enumerate(LENGTHS):
        part = (slice(row, row + 1), slice(length))
        alone = ops.attention(
            q[part],
            k[part],
            v[part],
            spec=SPEC,
            context=ops.dense_context(1, length, causal=causal),
            layer=0,
        )
        np.testing.assert_allclose(padded[0][part], ops.numpy(alone), rtol=1e-5, atol=1e-5)
