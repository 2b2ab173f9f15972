"""Drawing the codes of a frame on a CPU, with few and cheap operations.

A pass of the code predictor is some hundred operations on a few hundred numbers. Each costs numpy a
third of what it costs torch, so everything but the products is numpy's. All operations are
elementwise, or sum within one row, so that a row's bits do not depend on its batch (ADR 5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from izwi.backends.torch.half_product import ROW_MULTIPLE, HalfProduct
from izwi.backends.torch.host_arrays import Floats, normed, padded_rows, rotated
from izwi.ops.attention_spec import AttentionSpec
from izwi.ops.frames import FrameLayer, FrameStack

Pick = Callable[[Tensor, int], Tensor]


class HostFrames:
    """Draws frames of float32 stacks; weights are prepared once for each stack."""

    def __init__(self) -> None:
        # by the first layer's weight, which lives as long as its model
        self._stacks: Any = WeakIdKeyDictionary()

    def draw(self, stack: FrameStack, x: Tensor, pick: Pick) -> Tensor | None:
        """Draw as `Ops.draw_codes`; None if weights are of another kind than float32 arrays."""
        key = stack.layers[0].qkv
        if not _is_plain(key):
            return None
        prepared: _Stack | None = self._stacks.get(key)
        if prepared is None:
            if not _can_prepare(stack):
                return None
            self._stacks[key] = prepared = _Stack(stack)
        return prepared.draw(x, pick)


class _Stack:
    def __init__(self, stack: FrameStack):
        spec, codebooks = stack.attention, len(stack.heads)
        self._layers = [_Layer(layer, spec, stack.eps) for layer in stack.layers]
        self._heads = [HalfProduct(head) for head in stack.heads]
        self._embeds: list[Floats] = [embed.numpy() for embed in stack.embeds]
        self._norm, self._eps = stack.norm.numpy(), stack.eps
        self._spec, self._positions = spec, codebooks + 1
        self._cos, self._sin = _rope(spec, self._positions)

    def draw(self, x: Tensor, pick: Pick) -> Tensor:
        """Draw the codes of (rows, 2, hidden) inputs, one pass a codebook."""
        rows = x.shape[0]
        padded = padded_rows(x.numpy(), ROW_MULTIPLE)
        cache = _Cache.allocate(len(self._layers), len(padded), self._positions, self._spec)
        ids: list[Tensor] = []
        state, start = padded, 0
        for codebook, head in enumerate(self._heads, 1):
            out = self._passed(state, cache, start)
            start += state.shape[1]
            logits = head(torch.from_numpy(normed(out[:, -1], self._norm, self._eps)))
            ids.append(pick(logits[:rows], codebook))
            if codebook < len(self._heads):  # the last code is never fed back
                state = np.zeros((len(padded), 1, x.shape[2]), np.float32)
                state[:rows, 0] = self._embeds[codebook - 1][ids[-1].numpy()]
        return torch.stack(ids, 1)

    def _passed(self, x: Floats, cache: _Cache, start: int) -> Floats:
        stop = start + x.shape[1]
        table = self._cos[start:stop], self._sin[start:stop]
        for layer, keys, values in zip(self._layers, cache.keys, cache.values, strict=True):
            x = layer.passed(x, table, (keys, values), start)
        return x


@dataclass(frozen=True, slots=True)
class _Cache:
    """Keys and values, (rows, kv_heads, positions, head_dim) for each layer."""

    keys: Floats
    values: Floats

    @staticmethod
    def allocate(layers: int, rows: int, positions: int, spec: AttentionSpec) -> _Cache:
        shape = (layers, rows, spec.num_kv_heads, positions, spec.head_dim)
        return _Cache(np.empty(shape, np.float32), np.empty(shape, np.float32))


class _Layer:
    def __init__(self, layer: FrameLayer, spec: AttentionSpec, eps: float):
        self._qkv_norm, self._gated_norm = _optional(layer.qkv_norm), _optional(layer.gated_norm)
        # a copy: the table of stacks would never forget a key that its own value holds
        self._qkv, self._out = HalfProduct(layer.qkv.clone()), HalfProduct(layer.out)
        self._gated, self._down = HalfProduct(layer.gated), HalfProduct(layer.down)
        heads = [layer.q_norm] * spec.num_heads + [layer.k_norm] * spec.num_kv_heads
        self._head_norms = torch.stack(heads).numpy()  # (heads + kv_heads, head_dim)
        self._spec, self._eps = spec, eps

    def passed(
        self, x: Floats, table: tuple[Floats, Floats], cache: tuple[Floats, Floats], start: int
    ) -> Floats:
        """Run (rows, tokens, hidden) through the layer, from a position on."""
        x = x + _product(self._out, self._attended(x, table, cache, start))
        both = _product(self._gated, normed(x, self._gated_norm, self._eps))
        gate, up = torch.from_numpy(both).chunk(2, -1)
        return x + _product(self._down, F.silu(gate).mul_(up).numpy())

    def _attended(
        self, x: Floats, table: tuple[Floats, Floats], cache: tuple[Floats, Floats], start: int
    ) -> Floats:
        spec, (rows, tokens, _) = self._spec, x.shape
        num_heads, kv_heads = spec.num_heads, spec.num_kv_heads
        joined = _product(self._qkv, normed(x, self._qkv_norm, self._eps))
        heads = joined.reshape(rows, tokens, num_heads + 2 * kv_heads, spec.head_dim)
        turned = rotated(
            normed(heads[:, :, : num_heads + kv_heads], self._head_norms, spec.norm_eps), *table
        )
        keys, values = cache
        stop = start + tokens
        keys[:, :, start:stop] = turned[:, :, num_heads:].transpose(0, 2, 1, 3)
        values[:, :, start:stop] = heads[:, :, num_heads + kv_heads :].transpose(0, 2, 1, 3)
        queries = turned[:, :, :num_heads] * np.float32(spec.head_dim**-0.5)
        queries = queries.reshape(rows, tokens, kv_heads, -1, spec.head_dim)
        parts = [
            _attend(queries[:, at], keys[:, :, : start + at + 1], values[:, :, : start + at + 1])
            for at in range(tokens)
        ]
        return np.stack(parts, 1)  # (rows, tokens, heads * head_dim)


def _attend(q: Floats, keys: Floats, values: Floats) -> Floats:
    """Attend with one query a row.

    Args:
        q: (rows, kv_heads, group, head_dim), scaled.
        keys: (rows, kv_heads, positions, head_dim), those that are seen.
        values: The same shape.

    Returns:
        (rows, kv_heads * group * head_dim).
    """
    scores = np.add.reduce(np.multiply(q[:, :, :, None], keys[:, :, None], order="C"), -1)
    scores -= np.maximum.reduce(scores, -1, keepdims=True)
    weights = np.exp(scores)
    weights /= np.add.reduce(weights, -1, keepdims=True)
    # (rows, kv_heads, group, positions, head_dim), whose positions are added in their order
    parts = np.multiply(weights[..., None], values[:, :, None], order="C")
    out: Floats = np.add.reduce(parts, -2)
    return out.reshape(len(q), -1)


def _product(product: HalfProduct, x: Floats) -> Floats:
    flat = torch.from_numpy(x.reshape(-1, x.shape[-1]))
    return product(flat).numpy().reshape(*x.shape[:-1], -1)


def _rope(spec: AttentionSpec, positions: int) -> tuple[Floats, Floats]:
    """Return cosine and sine, (positions, 1, head_dim / 2)."""
    assert spec.rope_theta is not None
    exponents = np.arange(0, spec.head_dim, 2, dtype=np.float32) / spec.head_dim
    frequencies = (1.0 / spec.rope_theta**exponents).astype(np.float32)
    angles = np.arange(positions, dtype=np.float32)[:, None, None] * frequencies
    return np.cos(angles), np.sin(angles)


def _optional(norm: Tensor | None) -> Floats | None:
    return None if norm is None else norm.numpy()


def _can_prepare(stack: FrameStack) -> bool:
    matrices = [m for n in stack.layers for m in (n.qkv, n.out, n.gated, n.down)]
    arrays = [*matrices, *stack.heads, *stack.embeds, stack.norm]
    return stack.attention.rope_theta is not None and all(map(_is_plain, arrays))


def _is_plain(array: object) -> TypeGuard[Tensor]:
    if not isinstance(array, Tensor):
        return False
    return array.dtype == torch.float32 and array.device.type == "cpu"
