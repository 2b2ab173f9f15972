"""By what the positions of a prompt with images turn: time, height and width (M-RoPE).

Text turns by its position on all three axes. An image's tokens turn by row and column, and take as
few steps as its longer side has tokens, so text after it turns by less than its position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct

from izwi.arrays import Int64


class RotaryPositions(Struct, frozen=True, eq=False):
    """Rotary positions of one request.

    Attributes:
        prompt: (3, positions of the prompt) int64: time, height, width.
        shift: Added to the position, on all axes, after the prompt.
    """

    prompt: Int64
    shift: int

    def between(self, start: int, stop: int) -> Int64:
        """Return the rotary positions of [start, stop), (3, stop - start), of prompt and log."""
        known = self.prompt.shape[1]
        if start >= known:
            return np.broadcast_to(np.arange(start, stop) + self.shift, (3, stop - start))
        if stop <= known:
            return self.prompt[:, start:stop]
        return np.concatenate([self.prompt[:, start:], self.between(known, stop)], 1)


class RotatedPrompt(Protocol):
    """A prompt of a model whose attention has `rope_sections`.

    Attributes:
        rotary: None if all positions turn by themselves: a prompt of text.
    """

    @property
    def rotary(self) -> RotaryPositions | None:
        """By what its positions turn."""
        ...


def rotary_positions(
    prompts: Sequence[RotatedPrompt], spans: Sequence[tuple[int, int]]
) -> Int64 | None:
    """Return the rotary positions of spans end to end, (3, positions).

    Args:
        prompts: Prompt of each span.
        spans: Positions [start, stop) of prompt and log.

    Returns:
        None if all positions turn by themselves, as in steps without images.
    """
    if all(prompt.rotary is None for prompt in prompts):
        return None
    return np.concatenate(
        [
            np.broadcast_to(np.arange(start, stop), (3, stop - start))
            if prompt.rotary is None
            else prompt.rotary.between(start, stop)
            for prompt, (start, stop) in zip(prompts, spans, strict=True)
        ],
        1,
    )
