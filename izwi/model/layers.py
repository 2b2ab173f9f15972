"""Cache specifications: the state that each layer of a model keeps between steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """A layer that keeps a key and a value of every position, in pages.

    Attributes:
        num_kv_heads: Key and value heads.
        head_dim: Width of one head.
        rope_theta: Base of the rotation that keys are kept in, or None for no rotation.
        window: Positions that a query sees, itself included; None: all before it.
        rope_sections: As in `AttentionSpec`. Requests of such a model say in
            `RotatedPrompt.rotary` by what their positions turn.
    """

    num_kv_heads: int
    head_dim: int
    rope_theta: float | None = None
    window: int | None = None
    rope_sections: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ShortConv:
    """A layer with a depthwise causal convolution over positions.

    Attributes:
        channels: Of its input.
        width: Positions that an output depends on, itself included: the kernel.
    """

    channels: int
    width: int


CacheSpec = PagedAttention | ShortConv


@dataclass(frozen=True, slots=True)
class ConvSpec:
    """The short convolutions of a model, which are alike.

    Attributes:
        num_layers: How many.
        channels: Of each.
        width: Positions that an output depends on, itself included.
    """

    num_layers: int
    channels: int
    width: int


@dataclass(frozen=True, slots=True)
class KVSpec:
    """The state of all layers of a model in its pages.

    Attributes:
        num_layers: Number of layers with attention.
        num_kv_heads: Key and value heads of each layer.
        head_dim: Width of one head.
        rope_theta: Base of the rotary embedding of the stored keys.
        windows: Number of positions that a query sees, for each attention layer; empty for all.
        conv: Short convolutions, or None. Their inputs are stored in the page, see `PagedKV`.
        rope_sections: As in `PagedAttention`.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float | None = None
    windows: tuple[int | None, ...] = ()
    conv: ConvSpec | None = None
    rope_sections: tuple[int, ...] = ()

    @staticmethod
    def from_layers(layers: Sequence[CacheSpec]) -> KVSpec:
        """Gather the layers of a model.

        Raises:
            ValueError: Attention layers differ in more than their window, convolutions differ, or
                there is no attention.
        """
        attention = [layer for layer in layers if isinstance(layer, PagedAttention)]
        convs = [layer for layer in layers if isinstance(layer, ShortConv)]
        shapes = {(a.num_kv_heads, a.head_dim, a.rope_theta, a.rope_sections) for a in attention}
        if len(shapes) != 1 or len(set(convs)) > 1:
            raise ValueError("attention layers, and short convolutions, must be alike in a model")
        ((heads, head_dim, rope_theta, rope_sections),) = shapes
        windows = tuple(layer.window for layer in attention)
        return KVSpec(
            len(attention),
            heads,
            head_dim,
            rope_theta,
            windows if any(windows) else (),
            ConvSpec(len(convs), convs[0].channels, convs[0].width) if convs else None,
            rope_sections,
        )


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One array of a stream's fixed-size state: its shape without the batch axis."""

    shape: tuple[int, ...]
    dtype: str = "float"  # "float" (the dtype of the weights) or "int64"
