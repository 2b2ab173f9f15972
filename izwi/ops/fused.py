"""Operations that a backend may fuse. Their defaults are compositions of the core table.

What one codec alone is made of does not belong to the table that every backend implements. A
backend that has a kernel for one of these adds a method of the same name.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from izwi.ops.protocol import Array, Conv, Ops, Snake


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
