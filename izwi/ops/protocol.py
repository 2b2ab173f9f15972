"""The operations that models are written over: the core, and compositions of it.

A model is functions of a mapping of weights and of these operations. They hide what a backend may
fuse or keep in place: KV writes, convolution state, attention.

A backend subclasses `Ops` and implements the twenty methods of `core.py`. It inherits all others
from `arithmetic.py`, `audio.py` and `attention.py`, as compositions of the core, and overrides
those for which its device has a faster implementation (ADR 25). Calls are plain method calls either
way.

Layouts: sequences are (..., tokens, channels); convolutions are (batch, channels, time), with
weights as the checkpoint has them, (out, in / groups, kernel).
"""

from __future__ import annotations

from typing import Protocol

from izwi.ops.attention import AttentionOps
from izwi.ops.attention_spec import AttentionSpec
from izwi.ops.core import (
    Array,
    AttentionContext,
    Conv,
    CoreOps,
    ScratchContext,
    Snake,
    Weights,
)
from izwi.ops.frames import FrameOps

__all__ = [
    "Array",
    "AttentionContext",
    "AttentionSpec",
    "Conv",
    "CoreOps",
    "Ops",
    "ScratchContext",
    "Snake",
    "Weights",
]


class Ops(AttentionOps, FrameOps, Protocol):
    """The operations of one backend on one device in one dtype."""
