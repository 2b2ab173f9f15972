"""How a pipeline is loaded and run."""

from __future__ import annotations

from msgspec import Struct


class PipelineOptions(Struct, frozen=True, kw_only=True):
    """How a pipeline is loaded and run.

    Attributes:
        folder: Has model_index.json, and weights as safetensors.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        memory_bytes: What the process may use, of the device's memory; 0: no limit.
        compiles: Whether torch compiles what denoises, which takes minutes at the first image.
        offloads: Whether the parts that do not run are kept in the host's memory.
        attention: A backend of diffusers' attention, such as "native" or "flash"; None for its own.
    """

    folder: str
    device: str = "auto"
    memory_bytes: int = 0
    compiles: bool = False
    offloads: bool = False
    attention: str | None = None
