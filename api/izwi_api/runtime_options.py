"""Runtime options of models: device, dtype, quantization, attention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Device, dtype and kernels that models run with.

    Attributes:
        offline: Never ask the hub for a checkpoint.
        weights: Format of the decoders' weights: "auto", "int8", "fp8" or "int4".
        attention: Attention of the decoders: "auto", "torch" or "triton".
    """

    device: str = "auto"
    dtype: str = "auto"
    offline: bool = False
    weights: str = "auto"
    attention: str = "auto"
