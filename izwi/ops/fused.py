"""Operations that a backend may fuse. Their defaults are compositions of the core table.

What one codec alone is made of does not belong to the table that every backend implements. A
backend that has a kernel for one of these adds a method of the same name.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from izwi.ops.protocol import Array, AttentionContext, Conv, Ops, Snake


@runtime_checkable
class FusesResidualUnit(Protocol):
    """A backend with a kernel for `residual_unit`."""

    def residual_unit(
        self,
        x: Array,
        snakes: tuple[Snake, Snake],
        convs: tuple[Conv, Conv],
        state: Array,
        *,
        dilation: int,
    ) -> tuple[Array, Array]:
        """As the function below."""
        ...


def residual_unit(
    ops: Ops,
    x: Array,
    snakes: tuple[Snake, Snake],
    convs: tuple[Conv, Conv],
    state: Array,
    *,
    dilation: int,
) -> tuple[Array, Array]:
    """A stream of x + conv(snake(causal_conv(snake(x)))).

    Args:
        ops: The backend's operations; its own kernel is taken if it has one.
        x: (batch, channels, time).
        snakes: alpha and beta of the Snakes before the first and the second convolution.
        convs: Weight and bias of the causal convolution and of the one with a kernel of 1.
        state: Of the causal convolution, with its Snake; see `Ops.causal_conv1d`.
        dilation: Of the causal convolution.

    Returns:
        Like `x`, and the state for the next call.
    """
    if isinstance(ops, FusesResidualUnit):
        return ops.residual_unit(x, snakes, convs, state, dilation=dilation)
    return composed_residual_unit(ops, x, snakes, convs, state, dilation=dilation)


def composed_residual_unit(
    ops: Ops,
    x: Array,
    snakes: tuple[Snake, Snake],
    convs: tuple[Conv, Conv],
    state: Array,
    *,
    dilation: int,
) -> tuple[Array, Array]:
    """`residual_unit` out of core operations."""
    y, after = ops.causal_conv1d(x, *convs[0], state, dilation=dilation, snake=snakes[0])
    return x + ops.conv1d(ops.snake(y, *snakes[1]), *convs[1]), after


@runtime_checkable
class FusesGatedShortConv(Protocol):
    """A backend with a kernel for `gated_short_conv`."""

    def gated_short_conv(
        self, projected: Array, weight: Array, *, context: AttentionContext, layer: int
    ) -> Array:
        """As the function below."""
        ...


def gated_short_conv(
    ops: Ops, projected: Array, weight: Array, *, context: AttentionContext, layer: int
) -> Array:
    """The operator of LFM2: a short convolution whose input and output are gated.

    Args:
        ops: The backend's operations; its own kernel is taken if it has one.
        projected: (positions, 3 * channels): gate of the input, gate of the output, input.
        weight: (channels, width) of the convolution.
        context: That of attention in the same step.
        layer: Which of the model's short convolutions.

    Returns:
        (positions, channels).
    """
    if isinstance(ops, FusesGatedShortConv):
        return ops.gated_short_conv(projected, weight, context=context, layer=layer)
    return composed_gated_short_conv(ops, projected, weight, context=context, layer=layer)


def composed_gated_short_conv(
    ops: Ops, projected: Array, weight: Array, *, context: AttentionContext, layer: int
) -> Array:
    """`gated_short_conv` out of core operations."""
    width = weight.shape[0]
    gate_in, gate_out, x = (projected[..., n * width : (n + 1) * width] for n in range(3))
    return gate_out * ops.short_conv(gate_in * x, weight, context=context, layer=layer)
