"""What models run on, as the command line says it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Where:
    """What the models run on.

    Attributes:
        offline: Never ask the hub for a checkpoint.
        weights: How the decoders' weights are kept: "auto", "int8", "fp8" or "int4".
        attention: What the decoders attend with: "auto", "torch" or "triton".
    """

    device: str = "auto"
    dtype: str = "auto"
    offline: bool = False
    weights: str = "auto"
    attention: str = "auto"
