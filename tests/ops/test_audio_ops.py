"""Operations of audio encoders and codecs, against their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from izwi.backends.torch import audio as torch_audio
from izwi.backends.torch.ops import TorchOps
from izwi.ops import Ops
from izwi.ops.protocol import AttentionSpec
from tests.ops import tables
from tests.ops.devices import DEVICE, normal
from tests.ops.tables import each_backend, table

OPS = TorchOps(DEVICE)
SPEC = AttentionSpec(num_heads=3, num_kv_heads=3, head_dim=4, rope_theta=None)


def attended(batch: int, tokens: int, key_lengths: torch.Tensor | None = None) -> torch.Tensor:
    q, k, v = (normal(batch, tokens, 12, seed=n) for n in range(3))
    return OPS.relative_attention(
        q, k, v, distances(tokens), spec=SPEC, biases=biases(), key_lengths=key_lengths
    )


def distances(tokens: int) -> torch.Tensor:
    """Of 30 tokens, so that those of fewer are in the middle."""
    return normal(59, 12, seed=3)[30 - tokens : 29 + tokens]


def biases() -> tuple[torch.Tensor, torch.Tensor]:
    return normal(3, 4, seed=4), normal(3, 4, seed=5)


def by_definition(row: int, tokens: int, batch: int, length: int) -> torch.Tensor:
    """One row, query by query and key by key."""
    q, k, v = (normal(batch, tokens, 12, seed=n)[row].view(tokens, 3, 4) for n in range(3))
    d = distances(tokens).view(-1, 3, 4)
    content, position = biases()
    out = torch.empty(tokens, 3, 4, device=DEVICE)
    for i in range(tokens):
        for head in range(3):
            scores = torch.stack(
                [
                    (q[i, head] + content[head]) @ k[j, head]
                    + (q[i, head] + position[head]) @ d[tokens - 1 - (i - j), head]
                    for j in range(length)
                ]
            )
            out[i, head] = torch.softmax(scores / 2.0, 0) @ v[:length, head]
    return out.view(tokens, 12)


def on(ops: Ops, x: torch.Tensor) -> Any:
    return ops.array(x.cpu().numpy())


@each_backend
@pytest.mark.parametrize("tokens", [1, 2, 7])
@pytest.mark.parametrize("lengths", [None, (1, 4, 7)])
def test_relative_attention_is_its_definition(
    tokens: int, lengths: tuple[int, ...] | None, backend: str
) -> None:
    ops, known = table(backend), None
    if lengths is not None:
        lengths = tuple(min(length, tokens) for length in lengths)
        known = ops.array(np.array(lengths))
    q, k, v = (on(ops, normal(3, tokens, 12, seed=n)) for n in range(3))
    content, position = (on(ops, bias) for bias in biases())
    out = ops.numpy(
        ops.relative_attention(
            q,
            k,
            v,
            on(ops, distances(tokens)),
            spec=SPEC,
            biases=(content, position),
            key_lengths=known,
        )
    )
    for row in range(3):
        expected = by_definition(row, tokens, 3, tokens if lengths is None else lengths[row])
        np.testing.assert_allclose(out[row], expected.cpu().numpy(), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("block", [1, 4, 29])
def test_blocks_of_queries_give_the_same(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    lengths = torch.tensor([30, 11], device=DEVICE)
    whole = attended(2, 30, lengths)
    monkeypatch.setattr(torch_audio, "_MOST_SCORES", block * 2 * 3 * 30)
    torch.testing.assert_close(attended(2, 30, lengths), whole)


def test_gradients_reach_every_input_of_relative_attention() -> None:
    leaves = [normal(1, 5, 12, seed=n).requires_grad_() for n in range(3)]
    d = distances(5).requires_grad_()
    both = [bias.requires_grad_() for bias in biases()]
    out = OPS.relative_attention(*leaves, d, spec=SPEC, biases=(both[0], both[1]))
    out.square().sum().backward()  # type: ignore[no-untyped-call]
    for leaf in (*leaves, d, *both):
        assert leaf.grad is not None
        assert leaf.grad.any()


@each_backend
def test_a_depthwise_convolution_keeps_its_channels_apart(backend: str) -> None:
    ops = table(backend)
    x, weight, bias = (
        ops.array(tables.normal(*shape, seed=seed))
        for shape, seed in (((2, 6, 9, 8), 6), ((6, 1, 3, 3), 7), ((6,), 8))
    )
    out = ops.numpy(ops.conv2d(x, weight, bias, stride=2, padding=1, groups=6))
    for channel in range(6):
        one = slice(channel, channel + 1)
        alone = ops.conv2d(x[:, one], weight[one], bias[one], stride=2, padding=1)
        np.testing.assert_allclose(out[:, one], ops.numpy(alone), rtol=1e-5, atol=1e-5)


@each_backend
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_spectral_frames_are_windowed_sums_of_cosines(dtype: str, backend: str) -> None:
    n, ops = 16, table(backend, dtype)
    given = [
        ops.array(scale * tables.normal(*shape, seed=seed))
        for scale, shape, seed in ((1, (2, 3, 5), 9), (0.3, (n + 2, 5), 10), (1, (n + 2,), 11))
    ]
    found = ops.spectral_frames(*given)
    assert found.shape == (2, 3, n)
    assert str(found.dtype).endswith("float32")
    frames = torch.from_numpy(ops.numpy(found)).to(DEVICE)
    x, weight, bias = (torch.from_numpy(ops.numpy(one)).to(DEVICE) for one in given)
    projected = x.double() @ weight.double().T + bias.double()
    magnitude, angle = projected[..., : n // 2 + 1].exp(), projected[..., n // 2 + 1 :]
    time = torch.arange(n, device=DEVICE, dtype=torch.float64)
    samples = torch.zeros(2, 3, n, dtype=torch.float64, device=DEVICE)
    for k in range(n // 2 + 1):
        turn = 2 * torch.pi * k * time / n
        both_sides = 1 if k in (0, n // 2) else 2
        wave = (angle[..., k, None] + turn).cos()
        if k in (0, n // 2):  # the angle has no sine there
            wave = angle[..., k, None].cos() * turn.cos()
        samples += both_sides * magnitude[..., k, None] * wave / n
    window = 0.5 - 0.5 * (2 * torch.pi * time / n).cos()
    torch.testing.assert_close(frames, (samples * window).float(), rtol=1e-5, atol=1e-5)
