"""The table over the kernels gives what the table over torch gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from izwi.backends.torch.attention.dense import ScratchCache
from izwi.backends.torch.grouped import GroupedWeight, JoinedWeight, widen
from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.quantized import quantized_weight
from izwi.backends.torch.triton import linear as triton_linear
from izwi.backends.torch.triton import ops as triton_ops
from izwi.backends.torch.triton.attention_decode import ScratchDecode
from izwi.backends.torch.triton.ops import TritonOps
from izwi.checkpoints.linear_spec import LinearForm, Numbers
from izwi.config import WEIGHTS
from izwi.ops.protocol import AttentionSpec
from tests.ops.devices import DEVICE, assert_near, normal

F32, EPS = torch.float32, 1e-3
SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, rope_theta=1e4)
TORCH, TRITON = TorchOps(DEVICE, F32), TritonOps(DEVICE, F32)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("rows", [(1,), (2, 1), (3, 2), (70,)])
def test_products(rows: tuple[int, ...], weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """70 rows are more than the kernels take, and so go through torch."""
    launched: list[int] = []
    launch = triton_linear._launch
    monkeypatch.setattr(
        triton_linear,
        "_launch",
        lambda x, *args, **kwargs: (launched.append(len(x)), launch(x, *args, **kwargs)),
    )
    x, residual = normal(*rows, 32, seed=1), normal(*rows, 24, seed=2)
    plain, norm, bias = normal(24, 32, seed=3) / 6, normal(32, seed=4), normal(24, seed=5)
    made = TritonOps(DEVICE, F32, weights).quantize(plain)
    weight = widen(made, F32)
    assert (weight is plain) == (weights in ("auto", "float"))
    normed = TORCH.linear(TORCH.rms_norm(x, norm, EPS), weight)
    assert_near(TRITON.linear(x, made, bias), TORCH.linear(x, weight, bias), F32)
    assert_near(TRITON.normed_linear(x, norm, EPS, made), normed, F32)
    added = TRITON.linear_add(x, made, residual.clone())
    assert_near(added, residual + TORCH.linear(x, weight), F32)
    gate, up = normed.chunk(2, dim=-1)
    assert_near(TRITON.gated_linear(x, norm, EPS, made), TORCH.swiglu(gate, up), F32)
    count = x.numel() // 32
    assert launched == ([count] * 4 if count <= triton_linear.MAX_ROWS else [])


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("tokens", [1, 2])
def test_a_folded_norm_is_the_norm(
    tokens: int, library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernels' products, and by the library's, where its division is left to others."""
    monkeypatch.setattr(triton_linear, "prefers_torch", lambda *_: library)
    pending: list[object] = []
    attend = ScratchDecode.attend_fused
    monkeypatch.setattr(
        ScratchDecode,
        "attend_fused",
        lambda *args: (pending.append(args[8:]), attend(*args))[1],
    )
    x, norm = 3 * normal(3, tokens, 48, seed=1), normal(48, seed=2)
    weight = normal(8 * SPEC.head_dim, 48, seed=3) / 7
    none, folded = TRITON.fold_norm(norm, weight)
    assert none is None
    expected = TORCH.normed_linear(x, norm, EPS, weight)
    assert_near(TRITON.normed_linear(x, none, EPS, folded), expected, F32)
    gate, up = expected.chunk(2, dim=-1)
    assert_near(TRITON.gated_linear(x, none, EPS, folded), TORCH.swiglu(gate, up), F32)
    heads = {"q_norm": normal(SPEC.head_dim, seed=4), "k_norm": normal(SPEC.head_dim, seed=5)}
    contexts = [ops.scratch_context(3, 8, 1, SPEC) for ops in (TORCH, TRITON)]
    for _ in range(3):  # later tokens see what the earlier ones kept
        attended, found = (
            ops.normed_attention(x, *weights, spec=SPEC, context=context, layer=0, **heads)
            for ops, weights, context in zip(
                (TORCH, TRITON),
                ((norm, EPS, weight), (none, EPS, folded)),
                contexts,
                strict=True,
            )
        )
        assert_near(found, attended, F32)
        for context in contexts:
            context.advance(tokens)
    assert [bool(given) for given in pending] == [library] * 3


def test_what_may_leave_float16_and_quantized_weights_keep_their_norms() -> None:
    norm, weight = normal(32, seed=1), normal(24, 32, seed=2)
    for ops in (TritonOps(DEVICE, F32, "int8"), TORCH):
        assert ops.fold_norm(norm, weight) == (norm, weight)
    half = norm.half(), weight.half()
    assert TritonOps(DEVICE, torch.float16).fold_norm(*half) == half


def test_a_quantized_weight_stays_with_the_kernels_while_they_take_the_rows() -> None:
    """The library would have to be given a wide copy, whatever it prefers for full weights."""
    x, full = normal(40, 2048, seed=1), normal(4096, 2048, seed=2)
    assert not triton_ops._takes_product(full, x)
    assert triton_ops._takes_product(quantized_weight(full, torch.int8), x)


def test_a_slice_of_tokens_is_multiplied() -> None:
    x, weight = normal(3, 2, 32, seed=1), normal(24, 32, seed=3)
    assert_near(TRITON.linear(x[:, -1], weight), TORCH.linear(x[:, -1], weight), F32)


def test_differentiated_operations_run_in_torch() -> None:
    with torch.inference_mode(mode=False), torch.enable_grad():
        x = torch.randn(2, 32, device=DEVICE, requires_grad=True)
        weight = torch.ones(32, device=DEVICE)
        TRITON.rms_norm(x, weight, EPS).square().sum().backward()
        assert x.grad is not None
        context = TRITON.scratch_context(1, 4, 1, SPEC)
        assert isinstance(context, ScratchCache)


def test_activations() -> None:
    x, alpha = normal(2, 6, 33, seed=1), normal(6, seed=2)
    assert_near(TRITON.snake(x, alpha, alpha), TORCH.snake(x, alpha, alpha), F32)
    turned = x.transpose(1, 2)  # not contiguous
    assert_near(
        TRITON.snake(turned, normal(33, seed=3), normal(33, seed=4)),
        TORCH.snake(turned, normal(33, seed=3), normal(33, seed=4)),
        F32,
    )
    norm = normal(33, seed=5)
    assert_near(TRITON.rms_norm(x, norm, EPS), TORCH.rms_norm(x, norm, EPS), F32)
    assert_near(TRITON.swiglu(x, x), TORCH.swiglu(x, x), F32)


def test_scratch_attention() -> None:
    contexts = [ops.scratch_context(2, 4, 1, SPEC) for ops in (TORCH, TRITON)]
    assert isinstance(contexts[1], ScratchDecode)
    for step, tokens in enumerate((2, 1, 1)):
        q, k, v = (normal(2, tokens, heads * 16, seed=step + heads) for heads in (4, 2, 2))
        expected, found = (
            ops.attention(q, k, v, spec=SPEC, context=context, layer=0)
            for ops, context in zip((TORCH, TRITON), contexts, strict=True)
        )
        assert_near(found, expected, F32)
        for context in contexts:
            context.advance(tokens)


def test_other_contexts_go_through_torch() -> None:
    q, k, v = (normal(2, 5, heads * 16, seed=heads) for heads in (4, 2, 2))
    expected, found = (
        ops.attention(q, k, v, spec=SPEC, context=ops.dense_context(2, 5), layer=0)
        for ops in (TORCH, TRITON)
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "form",
    [
        LinearForm(24, 64, 4, 32, zero=8),
        LinearForm(24, 64, 8, 64, zero=128),
        LinearForm(24, 64, 8, 64, Numbers.E4M3),
        LinearForm(24, 64, 4, 32, zero=0, has_offsets=True),
        LinearForm(24, 64, 8, 32, Numbers.E4M3),
    ],
    ids=["int4", "int8", "fp8", "int4 with offsets", "fp8 in blocks"],
)
def test_a_published_weight_is_multiplied_by_the_kernels(form: LinearForm) -> None:
    codes = torch.randint(0, 126, (24, 64 * form.bits // 8), dtype=torch.uint8)
    scale = torch.rand(24, form.num_groups) / 100 + 0.001
    offset = torch.rand(24, form.num_groups, device=DEVICE) if form.has_offsets else None
    weight = GroupedWeight(form, codes.to(DEVICE), scale.to(DEVICE), offset=offset)
    norm, ops = normal(64, seed=4), TritonOps(DEVICE, F32)
    assert ops.fold_norm(norm, weight) == (norm, weight)
    made, wide = ops.quantize(weight), weight.wide(F32)
    assert ops.packed_bytes(form) == made.nbytes
    assert_near(widen(made, F32), wide, F32)
    for rows in (1, 5, 70):
        x, residual = normal(rows, 64, seed=1), normal(rows, 24, seed=2)
        assert_near(ops.linear(x, made), TORCH.linear(x, wide), F32)
        added = ops.linear_add(x, made, residual.clone())
        assert_near(added, residual + TORCH.linear(x, wide), F32)
    other = JoinedWeight((weight, normal(8, 64, seed=3)))
    joined, whole = ops.quantize(other), torch.cat([wide, normal(8, 64, seed=3)])
    assert isinstance(joined, JoinedWeight)
    assert joined.nbytes == made.nbytes + 8 * 64 * 4
    assert_near(widen(joined, F32), whole, F32)
    x, bias = normal(5, 64, seed=1), normal(32, seed=5)
    assert_near(ops.linear(x, joined, bias), TORCH.linear(x, whole, bias), F32)
    found = ops.normed_linear(x, norm, EPS, joined)
    assert_near(found, TORCH.normed_linear(x, norm, EPS, whole), F32)
