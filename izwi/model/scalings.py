"""Which inputs of a model's products may be scaled, since something before divides them again."""

from __future__ import annotations

from dataclasses import dataclass

from izwi.arrays import Float32


@dataclass(frozen=True, slots=True)
class InputScaling:
    """The inputs of weights that are multiplied together, and the tensor that gives them.

    Attributes:
        product: Name of the product that the weights join to.
        weights: Names of the weights, (out, in) each.
        source: Name of the tensor whose outputs the inputs are: a norm's (in,), or (in, ...).
        block: Outputs of the source that stay together; 0: outputs and inputs are the same.
        repeats: How often each block of the source's outputs follows itself among the inputs.
    """

    product: str
    weights: tuple[str, ...]
    source: str
    block: int = 0
    repeats: int = 1

    def shared(self, sizes: Float32) -> Float32:
        """Return sizes of inputs, of which those of the same output have the mean."""
        if self.repeats == 1:
            return sizes
        blocks = sizes.reshape(-1, self.repeats, self.block)
        mean = blocks.mean(1, keepdims=True)
        same: Float32 = mean.repeat(self.repeats, 1).reshape(-1)
        return same

    def of_source(self, scale: Float32) -> Float32:
        """Return the scales of the source's outputs, given those of the inputs."""
        if self.repeats == 1:
            return scale
        first: Float32 = scale.reshape(-1, self.repeats, self.block)[:, 0].reshape(-1)
        return first
