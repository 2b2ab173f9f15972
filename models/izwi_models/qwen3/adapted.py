"""The Qwen3 decoder stack with adapters: some positions of a step, each with its own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from izwi.arrays import Float32
from izwi.model.adapters import (
    AddsToProducts,
    MatrixUpdate,
    joined_update,
)
from izwi.model.scalings import InputScaling
from izwi.ops import Array, AttentionContext, Ops, Weights
from izwi.ops.attention import divide
from izwi_models.qwen3.config import MLP_NORM, NORM, DecoderConfig, layer_matrices, tensor_shapes
from izwi_models.qwen3.decoder import FOLDED, PRODUCTS

_QKV, _OUT, _GATE_UP, _DOWN = PRODUCTS
_NORMS = {_QKV[0]: NORM, _GATE_UP[0]: MLP_NORM}  # by the product of what they normalise


class AdaptedStack:
    """One stack whose rows may run with adapters: a part of `TakesAdapters`."""

    def __init__(self, ops: Ops, weights: Weights, config: DecoderConfig, prefix: str):
        """Bind weights that `izwi_models.qwen3.decoder.pack` has packed."""
        self._ops, self._weights, self._config, self._prefix = ops, weights, config, prefix

    @property
    def adaptable(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights that adapters may change, by name in the checkpoint."""
        return adaptable(self._config, self._prefix)

    @property
    def products(self) -> list[str]:
        """Names of the weights whose products adapters may change, as `pack` names them."""
        layers = range(self._config.num_hidden_layers)
        return [f"{self._prefix}layers.{n}.{name}.weight" for n in layers for name, _ in PRODUCTS]

    @property
    def scalings(self) -> list[InputScaling]:
        """Inputs that may be scaled: values and what is gated first, since they are rounded after.

        A query head reads the values of the key-value head that it shares.
        """
        found: list[InputScaling] = []
        spec = self._config.attention
        for n in range(self._config.num_hidden_layers):
            layer = f"{self._prefix}layers.{n}."
            sources = {
                _OUT: ("self_attn.v_proj.weight", spec.head_dim),
                _QKV: (NORM, 0),
                _DOWN: ("mlp.up_proj.weight", 0),
                _GATE_UP: (MLP_NORM, 0),
            }
            for (product, parts), (source, block) in sources.items():
                repeats = spec.num_heads // spec.num_kv_heads if block else 1
                names = tuple(f"{layer}{part}.weight" for part in parts)
                product = f"{layer}{product}.weight"
                found.append(InputScaling(product, names, layer + source, block, repeats))
        return found

    def product_matrices(self, matrices: Mapping[str, MatrixUpdate]) -> dict[str, MatrixUpdate]:
        """Join the updates of joined weights.

        Where a norm is folded into a weight, the product's input lacks it, and so `down` gets it.
        """
        made: dict[str, MatrixUpdate] = {}
        shapes = self.adaptable
        for n in range(self._config.num_hidden_layers):
            layer = f"{self._prefix}layers.{n}."
            for product, parts in PRODUCTS:
                names = [f"{layer}{part}.weight" for part in parts]
                update = joined_update(
                    [matrices.get(name) for name in names], [shapes[name][0] for name in names]
                )
                if update is not None:
                    down = update.down * self._folded(layer, product)
                    made[f"{layer}{product}.weight"] = MatrixUpdate(down, update.up)
        return made

    def _folded(self, layer: str, product: str) -> Float32 | float:
        """Return the norm that is folded into a product's weight, (in,); 1 if there is none."""
        norm = self._weights.get(f"{layer}{_NORMS.get(product)}{FOLDED}")
        return 1.0 if norm is None else self._ops.numpy(norm).astype(np.float32)

    def run(self, x: Array, context: AttentionContext, updates: AddsToProducts) -> Array:
        """Run the stack as `izwi_models.qwen3.decoder.decode`, by the parts of its products.

        On a CPU these are what fused products are composed of, so positions without an adapter have
        the same bits. A folded norm leaves the division to be done.
        """
        ops, weights, eps = self._ops, self._weights, self._config.rms_norm_eps
        spec = self._config.attention
        for n in range(self._config.num_hidden_layers):
            layer = f"{self._prefix}layers.{n}."

            def product(name: str, inputs: Array, layer: str = layer) -> Array:
                weight = f"{layer}{name}.weight"
                return updates.add(weight, inputs, ops.linear(inputs, weights[weight]))

            qkv = product(_QKV[0], ops.rms_norm(x, weights.get(layer + NORM), eps))
            q, k, v = divide(qkv, spec)
            q_norm, k_norm = (weights[f"{layer}self_attn.{name}_norm.weight"] for name in "qk")
            attended = ops.attention(
                q, k, v, spec=spec, context=context, layer=n, q_norm=q_norm, k_norm=k_norm
            )
            x = x + product(_OUT[0], attended)
            both = product(_GATE_UP[0], ops.rms_norm(x, weights.get(layer + MLP_NORM), eps))
            inner = both.shape[-1] // 2
            x = x + product(_DOWN[0], ops.swiglu(both[..., :inner], both[..., inner:]))
        return ops.rms_norm(x, weights[f"{self._prefix}norm.weight"], eps)


def adaptable(config: DecoderConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of a stack that adapters may change, by name."""
    shapes = tensor_shapes(config, prefix)
    return {name: shapes[name] for name in sorted(layer_matrices(shapes, prefix))}
