"""Runtime options of models: device, dtype, quantization, attention."""

from __future__ import annotations

from dataclasses import dataclass

from izwi.config import ATTENTIONS, WEIGHTS, require_one_of

# Of `--runner`: the second is an optional package of that name.
RUNNERS = ("izwi", "transformers")


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Device, dtype and kernels that models run with.

    Attributes:
        offline: Never ask the hub for a checkpoint.
        weights: Format of the decoders' weights: "auto", "int8", "fp8" or "int4".
        attention: Attention of the decoders: one of ATTENTIONS.
        runner: What runs the models: "izwi", or "transformers" for any chat model.

    Raises:
        InvalidRequest: The name of a format or of an attention is unknown. Whether the device has
            it is checked when the backend is opened.
    """

    device: str = "auto"
    dtype: str = "auto"
    offline: bool = False
    weights: str = "auto"
    attention: str = "auto"
    runner: str = "izwi"

    def __post_init__(self) -> None:
        require_one_of("weights", self.weights, WEIGHTS)
        require_one_of("attention", self.attention, ATTENTIONS)
