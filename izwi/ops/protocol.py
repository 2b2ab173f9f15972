"""The operations that models are written over: the core, and what is composed of it.

A model is functions over a mapping of weights and this table. What the table hides is what a
backend must be free to fuse or to keep in place: KV writes, convolution state, attention.

A backend subclasses `Ops` and implements the twenty methods of `core.py`. It has all others from
`arithmetic.py`, `sound.py` and `attention.py`, each as a composition of the core, and overrides
those for which its device has something faster (ADR 25). Calling one is a plain method call
either way.

Layouts: sequences are (..., tokens, channels); convolutions are (batch, channels, time), with
weights as the checkpoint has them, (out, in / groups, kernel).
"""

from __future__ import annotations

from typing import Protocol

from izwi.ops.attention import AttentionOps
from izwi.ops.core import (
    Array,
    AttentionContext,
    AttentionSpec,
    Conv,
    CoreOps,
    ScratchContext,
    Snake,
    Weights,
)

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


class Ops(AttentionOps, Protocol):
    """The operations of one backend on one device in one dtype."""
