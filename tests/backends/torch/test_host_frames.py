"""Frames drawn on a CPU with numpy: the codes of the plain operations, the same in any batch."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

from izwi.backends.torch.attention.dense import rope_table, rotate
from izwi.backends.torch.half_product import HalfProduct
from izwi.backends.torch.host_arrays import normed
from izwi.backends.torch.ops import TorchOps, rms_norm
from izwi.ops.attention_spec import AttentionSpec
from izwi.ops.frames import FrameLayer, FrameStack

HIDDEN, INNER, VOCABULARY, CODEBOOKS, EPS = 48, 96, 40, 6, 1e-6
SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, rope_theta=10_000.0, norm_eps=EPS)


def _draw(generator: torch.Generator, *shape: int) -> Tensor:
    """Return a weight that is exact in float16."""
    return (torch.randn(shape, generator=generator) * 0.2).half().float()


def _stack(seed: int = 0) -> FrameStack:
    generator = torch.Generator().manual_seed(seed)
    width = (SPEC.num_heads + 2 * SPEC.num_kv_heads) * SPEC.head_dim

    def layer() -> FrameLayer:
        return FrameLayer(
            qkv_norm=1.0 + _draw(generator, HIDDEN),
            qkv=_draw(generator, width, HIDDEN),
            out=_draw(generator, HIDDEN, SPEC.num_heads * SPEC.head_dim),
            gated_norm=1.0 + _draw(generator, HIDDEN),
            gated=_draw(generator, 2 * INNER, HIDDEN),
            down=_draw(generator, HIDDEN, INNER),
            q_norm=1.0 + _draw(generator, SPEC.head_dim),
            k_norm=1.0 + _draw(generator, SPEC.head_dim),
        )

    return FrameStack(
        layers=[layer(), layer()],
        heads=[_draw(generator, VOCABULARY, HIDDEN) for _ in range(CODEBOOKS)],
        embeds=[_draw(generator, VOCABULARY, HIDDEN) for _ in range(CODEBOOKS - 1)],
        norm=1.0 + _draw(generator, HIDDEN),
        attention=SPEC,
        eps=EPS,
    )


def _inputs(rows: int) -> Tensor:
    return torch.randn((rows, 2, HIDDEN), generator=torch.Generator().manual_seed(7))


def _plain_logits(ops: TorchOps, stack: FrameStack, x: Tensor, ids: Tensor) -> list[Tensor]:
    """Run the stack with the plain operations, fed the drawn ids."""
    context = ops.scratch_context(len(x), CODEBOOKS + 1, len(stack.layers), SPEC)
    logits = []
    for codebook, head in enumerate(stack.heads):
        state = x if codebook == 0 else stack.embeds[codebook - 1][ids[:, codebook - 1]][:, None]
        y = state
        for number, layer in enumerate(stack.layers):
            attended = ops.normed_attention(
                *(y, layer.qkv_norm, EPS, layer.qkv),
                spec=SPEC,
                context=context,
                layer=number,
                q_norm=layer.q_norm,
                k_norm=layer.k_norm,
            )
            y = ops.linear_add(attended, layer.out, y)
            y = ops.linear_add(
                ops.gated_linear(y, layer.gated_norm, EPS, layer.gated), layer.down, y
            )
        context.advance(state.shape[1])
        logits.append(ops.linear(ops.rms_norm(y, stack.norm, EPS)[:, -1], head))
    return logits


def _recording(logits: list[Tensor]) -> Callable[[Tensor, int], Tensor]:
    def pick(values: Tensor, codebook: int) -> Tensor:
        assert codebook == len(logits) + 1
        logits.append(values.clone())
        return values.argmax(-1)

    return pick


@torch.inference_mode()
def test_logits_of_every_codebook_equal_those_of_the_plain_operations() -> None:
    ops, stack, x = TorchOps(), _stack(), _inputs(5)
    drawn: list[Tensor] = []
    ids = ops.draw_codes(lambda: stack, x, _recording(drawn))
    assert ids is not None
    assert ids.shape == (5, CODEBOOKS)
    for ours, plain in zip(drawn, _plain_logits(ops, stack, x, ids), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_rows_have_same_bits_in_any_batch() -> None:
    ops, stack, x = TorchOps(), _stack(), _inputs(40)
    whole: list[Tensor] = []
    ops.draw_codes(lambda: stack, x, _recording(whole))
    for start, stop in ((0, 1), (0, 2), (3, 6), (1, 8), (0, 13), (7, 38)):
        part: list[Tensor] = []
        ops.draw_codes(lambda: stack, x[start:stop], _recording(part))
        assert all(torch.equal(a, b[start:stop]) for a, b in zip(part, whole, strict=True))


@torch.inference_mode()
def test_two_models_keep_their_own_weights() -> None:
    ops, first, second, x = TorchOps(), _stack(1), _stack(2), _inputs(4)

    def drawn(stack: FrameStack) -> Tensor:
        ids = ops.draw_codes(lambda: stack, x, lambda logits, _: logits.argmax(-1))
        assert ids is not None
        return ids

    before = drawn(first)
    assert not torch.equal(drawn(second), before)
    assert torch.equal(drawn(first), before)


@torch.inference_mode()
def test_other_dtypes_are_left_to_the_plain_operations() -> None:
    ops, stack = TorchOps(dtype=torch.bfloat16), _stack()
    assert ops.draw_codes(lambda: stack, _inputs(1).bfloat16(), lambda x, _: x) is None
    wide = stack._replace(heads=[head.double() for head in stack.heads])
    assert TorchOps().draw_codes(lambda: wide, _inputs(1), lambda x, _: x) is None


def test_norm_and_rotation_equal_torchs() -> None:
    x = torch.randn((3, 5, 4, 16), generator=torch.Generator().manual_seed(1))
    weight, table = torch.linspace(0.5, 1.5, 16), rope_table(torch.arange(5), 16, 1e4, x.dtype)
    with_gradients = rotate(x, table)
    with torch.inference_mode():
        torch.testing.assert_close(rms_norm(x, weight, EPS), F.rms_norm(x, (16,), weight, EPS))
        assert torch.equal(rotate(x, table), with_gradients)


def test_norm_of_a_transposed_array_has_the_bits_of_a_plain_one() -> None:
    x = torch.randn((4, 24, 7), generator=torch.Generator().manual_seed(2)).transpose(1, 2).numpy()
    assert (normed(x, None, EPS) == normed(x.copy(order="C"), None, EPS)).all()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("inputs", [48, 200])
def test_rows_of_a_product_have_same_bits_in_any_batch(exact: bool, inputs: int) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn((96, inputs), generator=generator)
    product = HalfProduct(weight.half().float() if exact else weight)
    x = torch.randn((72, inputs), generator=generator)
    whole = product(x)
    for rows in (4, 8, 24, 28, 32, 44, 72):
        assert torch.equal(product(x[-rows:]), whole[-rows:])


def test_weight_that_float16_cannot_hold_is_not_packed() -> None:
    weight = torch.full((8, 16), 1.0 + 2.0**-20)
    product = HalfProduct(weight)
    assert not product.is_packed
    x = torch.ones((4, 16))
    assert torch.equal(product(x), F.linear(x, weight))
