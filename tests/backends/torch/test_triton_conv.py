"""Convolutions by the kernels are the convolutions by torch, whole or in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.triton import conv as triton_conv
from izwi.backends.torch.triton import rows as triton_rows
from izwi.backends.torch.triton.conv_tiles import TILES, Tiles, unit_tiles_for
from tests.ops.devices import DEVICE, DTYPES, assert_near, normal

F32 = torch.float32
TORCH = TorchOps(DEVICE, F32)
Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.inference_mode():
        yield


def wide(*arrays: Tensor) -> list[Tensor]:
    return [array.float() for array in arrays]


def snake(channels: int, dtype: torch.dtype = F32) -> tuple[Tensor, Tensor]:
    alpha = normal(channels, seed=21, dtype=dtype) * 0.3
    return alpha, normal(channels, seed=22, dtype=dtype) * 0.3


def scattered_state(batch: int, channels: int, past: int, dtype: torch.dtype) -> Tensor:
    """A part of each row of something wider, as a gathered arena has it."""
    flat = normal(batch, channels * past + 5, seed=9, dtype=dtype)
    return flat[:, 3 : 3 + channels * past].view(batch, channels, past)


def in_chunks(step: Step, x: Tensor, state: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Outputs of a stream that comes in pieces, joined, and the last state."""
    outs = []
    for chunk in x.split(sizes, dim=2):
        out, state = step(chunk, state)
        assert out.transpose(1, 2).is_contiguous()
        assert state.is_contiguous()
        outs.append(out)
    return torch.cat(outs, 2), state


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("channels", "outputs", "taps", "dilation"),
    [(32, 48, 7, 1), (48, 20, 7, 3), (16, 32, 3, 9), (16, 8, 1, 1), (48, 1, 7, 2), (16, 1, 3, 1)],
)
def test_a_stream_in_chunks(
    channels: int, outputs: int, taps: int, dilation: int, dtype: torch.dtype
) -> None:
    past = (taps - 1) * dilation
    x = normal(2, channels, 14, seed=1, dtype=dtype)
    weight = normal(outputs, channels, taps, seed=2, dtype=dtype) / (channels * taps) ** 0.5
    bias = normal(outputs, seed=3, dtype=dtype)
    state = scattered_state(2, channels, past, dtype)
    assert triton_conv.takes(x, weight)
    expected, after = TORCH.causal_conv1d(*wide(x, weight, bias, state), dilation=dilation)

    def step(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return triton_conv.causal_conv1d(x, weight, bias, state, dilation=dilation)

    out, kept = in_chunks(step, x, state, (9, 1, 4))
    assert_near(out, expected, dtype)
    assert torch.equal(kept.float(), after)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs", [24, 1])
def test_snake_goes_before(outputs: int, dtype: torch.dtype) -> None:
    """The state is behind the Snake, so that it is computed once a column."""
    x = normal(2, 16, 11, seed=1, dtype=dtype).transpose(1, 2).contiguous().transpose(1, 2)
    weight = normal(outputs, 16, 3, seed=2, dtype=dtype) / 7
    state, (alpha, beta) = scattered_state(2, 16, 2, dtype), snake(16, dtype)
    snaked = TORCH.snake(*wide(x, alpha, beta))
    expected, after = TORCH.causal_conv1d(snaked, weight.float(), None, state.float())
    out, kept = triton_conv.causal_conv1d(x, weight, None, state, snake=(alpha, beta))
    assert_near(out, expected, dtype)
    assert_near(kept, after, dtype)


@pytest.mark.parametrize("channels", [24, 64])
def test_each_channel_by_itself(channels: int) -> None:
    x, weight = normal(2, channels, 10, seed=1), normal(channels, 1, 7, seed=2) / 3
    bias, state = normal(channels, seed=3), scattered_state(2, channels, 6, F32)
    assert triton_conv.takes(x, weight, groups=channels)
    expected, after = TORCH.causal_conv1d(x, weight, bias, state, groups=channels)

    def step(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return triton_conv.causal_conv1d(x, weight, bias, state, groups=channels)

    out, kept = in_chunks(step, x, state, (7, 3))
    assert_near(out, expected, F32)
    assert torch.equal(kept, after)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("reach", [1, 2])
def test_upsampling(stride: int, reach: int, dtype: torch.dtype) -> None:
    x = normal(2, 32, 5, seed=1, dtype=dtype)
    weight = normal(32, 12, stride * reach, seed=2, dtype=dtype) / 8
    bias, state = normal(12, seed=3, dtype=dtype), scattered_state(2, 32, reach - 1, dtype)
    alpha, beta = snake(32, dtype)
    assert triton_conv.takes_transposed(x, weight, stride)
    for before in (None, (alpha, beta)):
        heard = x.float() if before is None else TORCH.snake(*wide(x, alpha, beta))
        expected, after = TORCH.causal_conv_transpose1d(
            heard, *wide(weight, bias, state), stride=stride
        )

        def step(
            x: Tensor, state: Tensor, before: triton_conv.Snake | None = before
        ) -> tuple[Tensor, Tensor]:
            return triton_conv.causal_conv_transpose1d(
                x, weight, bias, state, stride=stride, snake=before
            )

        out, kept = in_chunks(step, x, state, (3, 2))
        assert_near(out, expected, dtype)
        assert_near(kept, after, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [48, 32, 112, 256])
def test_residual_unit(channels: int, dtype: torch.dtype) -> None:
    """In one kernel as two powers of two or one, and in two where it does not fit."""
    assert (unit_tiles_for(18, channels, 1 << 16) is not None) == (channels < 100)
    x = normal(2, channels, 9, seed=1, dtype=dtype)
    weights = [normal(channels, channels, k, seed=k, dtype=dtype) for k in (3, 1)]
    weights = [weight / (channels * weight.shape[2]) ** 0.5 for weight in weights]
    biases = [normal(channels, seed=seed, dtype=dtype) for seed in (4, 5)]
    state = scattered_state(2, channels, 6, dtype)
    first, second = snake(channels, dtype), snake(channels, dtype)[::-1]
    heard = TORCH.snake(*wide(x, *first))
    inner, after = TORCH.causal_conv1d(heard, *wide(weights[0], biases[0], state), dilation=3)
    inner = TORCH.snake(inner, *wide(*second))
    expected = x.float() + TORCH.conv1d(inner, *wide(weights[1], biases[1]))

    def step(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return triton_conv.residual_unit(
            x, first, (weights[0], biases[0]), second, (weights[1], biases[1]), state, dilation=3
        )

    out, kept = in_chunks(step, x, state, (5, 4))
    assert_near(out, expected, dtype)
    assert_near(kept, after, dtype)


@pytest.mark.parametrize("slices", [1, 2, 3])
def test_every_cut_gives_the_same(slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, state = normal(2, 32, 37, seed=1), scattered_state(2, 32, 6, F32)
    weight, bias = normal(40, 32, 7, seed=2) / 15, normal(40, seed=3)
    for tiles in (Tiles(32, 16, 16, 4, 2, slices), Tiles(16, 32, 32, 4, 3, slices)):
        monkeypatch.setitem(TILES, (128, 40, 32 * 7), tiles)
        found = triton_conv.causal_conv1d(x, weight, bias, state)[0]
        assert_near(found, TORCH.causal_conv1d(x, weight, bias, state)[0], F32)


def test_a_weight_is_arranged_once_and_forgotten_with_it() -> None:
    weight = normal(16, 32, 3, seed=2)
    arranged = triton_conv._by_output(weight)
    assert triton_conv._by_output(weight) is arranged
    count = len(triton_conv._arranged)
    del weight
    assert len(triton_conv._arranged) == count - 1


def test_conv_kernels_refuse_unsupported_shapes() -> None:
    x = normal(1, 24, 4, seed=1)
    assert not triton_conv.takes(x, normal(16, 24, 3, seed=2))  # no multiple of 16
    assert not triton_conv.takes(x, normal(24, 2, 3, seed=2), groups=12)
    assert not triton_conv.takes_transposed(x, normal(24, 16, 4, seed=2), 2)


@pytest.mark.parametrize("shape", [(2, 5, 7), (1, 3, 1500), (3, 40, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_snake_of_both_layouts(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    x, (alpha, beta) = normal(*shape, seed=1, dtype=dtype) * 3, snake(shape[1], dtype)
    expected = TORCH.snake(*wide(x, alpha, beta))
    last = x.transpose(1, 2).contiguous().transpose(1, 2)
    for array in (x, last):
        found = triton_rows.snake(array, alpha, beta)
        assert_near(found, expected, dtype)
        assert found.stride() == array.stride()
