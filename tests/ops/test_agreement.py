"""Every operation of the protocol gives the same numbers on every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from izwi.ops import AttentionSpec, Ops
from izwi.ops.protocol import Ops as OpsProtocol
from tests.ops.tables import CORE, composed, each_backend, normal, table

SPEC = AttentionSpec(4, 2, 8, 10_000.0)
PLAIN = AttentionSpec(4, 4, 8, None)
Case = Callable[[Ops, Callable[..., Any]], Any]
CASES: dict[str, Case] = {}


def case(run: Case) -> Case:
    CASES[run.__name__] = run
    return run


@case
def array(ops, x):
    return [ops.array([[1, -2], [3, 1 << 40]]), ops.array([True, False]), x(3, 4)]


@case
def making(ops, x):
    joined = ops.concat([x(2, 3), ops.zeros((1, 3))], 0)
    stacked = [ops.stack([x(2, 3), x(2, 3, seed=1)], axis) for axis in (0, 1, -1)]
    wide = ops.array(normal(3, seed=5), wide=True)
    casts = [ops.cast(x(3, 4)), ops.cast(wide, x(3)), ops.cast(ops.arange(3)), wide]
    return [ops.arange(5), joined, *stacked, *casts]


@case
def moving(ops, x):
    index = ops.array([[2, 0], [1, 1]])
    return [ops.transpose(x(2, 3, 4), (2, 0, 1)), ops.take(x(3, 5), index)]


@case
def take_columns(ops, x):
    return ops.take_columns(x(2, 3, 4), ops.array([[3, 3, 0], [0, 1, 2]]))


@case
def where(ops, x):
    mask = ops.arange(4) >= ops.array([[1], [3]])
    return [ops.where(mask, x(2, 4), 0.0), ops.where(mask, x(2, 4), float("-inf"))]


@case
def pad(ops, x):
    modes = ("constant", "reflect", "replicate")
    return [ops.pad(x(2, 3, 6), left, 4, mode) for mode in modes for left in (0, 3)]


@case
def linear(ops, x):
    weight, bias = x(5, 8, seed=1), x(5, seed=2)
    return [ops.linear(x(2, 3, 8), weight), ops.linear(x(7, 8), ops.quantize(weight), bias)]


@case
def norms(ops, x):
    weight, bias = x(8, seed=1), x(8, seed=2)
    folded, product = ops.fold_norm(weight, x(6, 8, seed=3))
    return [
        ops.rms_norm(x(3, 8), weight, 1e-6),
        ops.layer_norm(x(3, 8), weight, bias, 1e-5),
        ops.layer_norm(x(3, 8), weight, None, 1e-5),
        ops.normed_linear(x(3, 8), folded, 1e-6, product),
        ops.normed_linear(x(3, 8), None, 1e-6, product),
        ops.gated_linear(x(3, 8), folded, 1e-6, product),
        ops.linear_add(x(3, 8), product, x(3, 6, seed=4)),
        ops.split_linear_add(x(3, 8), product, x(3, 6, seed=4)),
    ]


@case
def pointwise(ops, x):
    names = ("silu", "gelu", "gelu_tanh", "elu", "relu", "sigmoid", "tanh", "softmax", "exp", "sin")
    many = [getattr(ops, name)(3 * x(4, 9)) for name in names]
    square = x(3, 4) * x(3, 4)
    return [
        *many,
        ops.sqrt(square),
        ops.swiglu(x(3, 4), x(3, 4, seed=1)),
        ops.clip(x(3, 4), -0.5, None),
        ops.clip(x(3, 4), None, 0.25),
        ops.snake(x(2, 3, 7), x(3, seed=1), x(3, seed=2)),
    ]


@case
def sums(ops, x):
    mask = (ops.arange(12) < ops.array([[1], [7], [12]]))[:, None]
    means = [ops.mean(x(2, 3, 4), 2), ops.mean(x(2, 3, 4), 1), ops.sum(x(2, 3, 4), 1)]
    return [*means, ops.masked_mean(x(3, 5, 12), mask)]


@case
def nearest(ops, x):
    return ops.nearest(x(3, 7, 4), x(11, 4, seed=1))


@case
def conv1d(ops, x):
    ways = ({}, {"dilation": 2}, {"stride": 2})
    plain = [ops.conv1d(x(2, 6, 20), x(4, 6, 3, seed=1), x(4, seed=2), **way) for way in ways]
    one = ops.conv1d(x(2, 6, 20), x(4, 6, 1, seed=1))
    return [*plain, one, ops.conv1d(x(2, 6, 20), x(6, 1, 3, seed=1), groups=6)]


@case
def causal_conv1d(ops, x):
    snake = (x(6, seed=4), x(6, seed=5))
    weight, bias, state = x(4, 6, 3, seed=1), x(4, seed=2), x(2, 6, 4, seed=3)
    streamed = ops.causal_conv1d(x(2, 6, 9), weight, bias, state, dilation=2, snake=snake)
    none = ops.zeros((2, 6, 0))
    return [*streamed, *ops.causal_conv1d(x(2, 6, 9), x(4, 6, 1, seed=1), None, none)]


@case
def causal_conv_transpose1d(ops, x):
    snake = (x(6, seed=4), x(6, seed=5))
    long = ops.causal_conv_transpose1d(
        x(2, 6, 5), x(6, 4, 6, seed=1), x(4, seed=2), x(2, 6, 1, seed=3), stride=3, snake=snake
    )
    none = ops.zeros((2, 6, 0))
    short = ops.causal_conv_transpose1d(x(2, 6, 5), x(6, 4, 3, seed=1), None, none, stride=3)
    return [*long, *short]


@case
def short_conv(ops, x):
    context = ops.dense_context(2, 9)
    return ops.short_conv(x(2, 9, 6), x(6, 3, seed=1), context=context, layer=0)


@case
def attention(ops, x):
    q, k, v = x(3, 9, 32), x(3, 9, 16, seed=1), x(3, 9, 16, seed=2)
    norms = {"q_norm": x(8, seed=3), "k_norm": x(8, seed=4)}
    lengths = ops.array([9, 1, 4])
    outputs = []
    for causal in (True, False):
        for known in (None, lengths):
            context = ops.dense_context(3, 9, causal=causal, key_lengths=known)
            given = {"spec": SPEC, "context": context, "layer": 0}
            outputs += [ops.attention(q, k, v, **given, **norms), ops.attention(q, k, v, **given)]
    weight = 0.2 * x(64, 12, seed=5)
    given = {"spec": SPEC, "context": ops.dense_context(3, 9), "layer": 0}
    return [*outputs, ops.normed_attention(x(3, 9, 12), x(12, seed=6), 1e-6, weight, **given)]


@case
def scratch_context(ops, x):
    context, outputs = ops.scratch_context(2, 9, 2, SPEC), []
    for n, tokens in enumerate((2, 1, 3, 1)):
        for layer in range(2):
            q = x(2, tokens, 32, seed=10 * n + layer)
            k, v = (x(2, tokens, 16, seed=10 * n + layer + some) for some in (2, 4))
            outputs.append(ops.attention(q, k, v, spec=SPEC, context=context, layer=layer))
        context.advance(tokens)
    return outputs


@case
def window_attention(ops, x):
    states = [ops.zeros((2, 4, 2, 8)), ops.zeros((2, 4, 2, 8))]
    outputs = []
    for n, tokens in enumerate((3, 1, 6)):
        start = ops.array([10 * n, 0])
        q, k, v = (x(2, tokens, width, seed=n + width) for width in (32, 16, 16))
        out, *states = ops.window_attention(
            q, k, v, spec=SPEC, window=5, start=start, k_state=states[0], v_state=states[1]
        )
        outputs += [out, *states]
    return outputs


@case
def conv2d(ops, x):
    plain = ops.conv2d(x(2, 3, 9, 8), x(4, 3, 3, 3, seed=1), x(4, seed=2), stride=2, padding=1)
    each = ops.conv2d(x(2, 6, 9, 8), x(6, 1, 3, 3, seed=1), None, stride=1, padding=0, groups=6)
    return [plain, each]


@case
def relative_attention(ops, x):
    q, k, v = (x(3, 7, 32, seed=n) for n in range(3))
    biases, distances = (x(4, 8, seed=4), x(4, 8, seed=5)), x(13, 32, seed=3)
    given = {"spec": PLAIN, "biases": biases}
    lengths = ops.array([1, 4, 7])
    return [
        ops.relative_attention(q, k, v, distances, **given),
        ops.relative_attention(q, k, v, distances, **given, key_lengths=lengths),
    ]


@case
def spectral_frames(ops, x):
    return ops.spectral_frames(x(2, 3, 5), 0.3 * x(18, 5, seed=1), x(18, seed=2))


@case
def gated_short_conv(ops, x):
    context = ops.dense_context(2, 9)
    return ops.gated_short_conv(x(2, 9, 18), x(6, 3, seed=1), context=context, layer=0)


@case
def residual_unit(ops, x):
    # slow waves: what rounding changes is not to be multiplied
    snakes = ((0.2 * x(6, seed=1), x(6, seed=2)), (0.2 * x(6, seed=3), x(6, seed=4)))
    convs = ((x(6, 6, 3, seed=5), x(6, seed=6)), (x(6, 6, 1, seed=7), x(6, seed=8)))
    return ops.residual_unit(x(2, 6, 9), snakes, convs, x(2, 6, 6, seed=9), dilation=3)


def outcome(name: str, ops: Ops) -> list[Any]:

    def x(*shape: int, seed: int = 0) -> Any:
        return ops.array(normal(*shape, seed=seed))

    found = CASES[name](ops, x)
    return [ops.numpy(one) for one in (found if isinstance(found, (list, tuple)) else [found])]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mlx_gives_what_torch_gives(name: str, dtype: str) -> None:
    expected = outcome(name, table("torch", dtype))
    assert_close(outcome(name, table("mlx", dtype)), expected, dtype)


@each_backend
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fused_operations_equal_their_compositions(name: str, dtype: str, backend: str) -> None:
    ops = table(backend, dtype)
    assert_close(outcome(name, composed(ops)), outcome(name, ops), dtype)


def test_the_core_is_small() -> None:
    assert len(CORE) <= 20


def assert_close(found: list[Any], expected: list[Any], dtype: str) -> None:
    """Compare to what a dtype can tell apart."""
    assert len(found) == len(expected)
    # a bfloat16 has eight bits, and what is summed rounds in another order
    near = {"float32": 2e-5, "bfloat16": 6e-2}[dtype]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        finite = np.abs(other[np.isfinite(other)])
        largest = max(1.0, float(finite.max(initial=0.0)))
        np.testing.assert_allclose(one, other, rtol=near, atol=near * largest)


def test_every_operation_is_compared() -> None:
    called: set[str] = set()

    class Watched:
        """Notes what is asked of the operations."""

        def __init__(self, ops: Ops) -> None:
            self._ops = ops

        def __getattr__(self, name: str) -> Any:
            called.add(name)
            return getattr(self._ops, name)

    ops = table("torch")
    for run in CASES.values():
        run(Watched(ops), lambda *shape, seed=0: ops.array(normal(*shape, seed=seed)))
    members = {name for name in dir(OpsProtocol) if not name.startswith("_")}
    # what every comparison goes through, who shares the models (tests/serve/test_ranks.py), and
    # what most backends do not have (tests/backends/torch/persistent)
    assert members - called == {"numpy", "ranks", "draw_codes"}
