"""Round a checkpoint to 4 bits in AWQ's layout, with scales of inputs searched on activations.

Inputs of large magnitude matter most, so their weights are multiplied by more than 1 before they
are rounded, and what gives these inputs is divided by the same: exact but for the rounding.
Source: AWQ (Lin et al. 2023), section 3.2; the layout is AutoAWQ's "gemm".
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from izwi.arrays import Float32
from izwi.checkpoints.folder import read_json
from izwi.checkpoints.formats.choice import layout_of
from izwi.checkpoints.stored_tensor import stored_tensors
from izwi.checkpoints.weight_files import weight_files
from izwi.errors import CheckpointError, InvalidRequest
from izwi.model.scalings import InputScaling

_MOST = 15
# Powers of the mean magnitude of an input that are tried; 0 is rounding to nearest.
_POWERS = tuple(n / 20 for n in range(20))
# Outputs of each word, from its lowest nibble.
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
# Inputs (samples, in) and a weight (out, in) -> (samples, out).
Multiply = Callable[[Float32, Float32], Float32]
_COPIED = ("*.json", "*.txt", "*.jinja")


@dataclass(frozen=True, slots=True)
class Rounded:
    """A matrix in 4 bits: (code - zero) * scale.

    Attributes:
        codes: (out, in) uint8.
        scales: (out, groups) float16.
        zeros: (out, groups) uint8.
    """

    codes: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float16]
    zeros: npt.NDArray[np.uint8]

    def wide(self) -> Float32:
        """Return the numbers, (out, in)."""
        outputs, inputs = self.codes.shape
        grouped = self.codes.reshape(outputs, self.scales.shape[1], -1).astype(np.float32)
        grouped -= self.zeros[..., None]
        return (grouped * self.scales.astype(np.float32)[..., None]).reshape(outputs, inputs)

    def tensors(self, layer: str) -> dict[str, npt.NDArray[Any]]:
        """Return the tensors of a layer as AWQ stores them."""
        return {
            f"{layer}.qweight": _words(self.codes.T),
            f"{layer}.qzeros": _words(self.zeros.T),
            f"{layer}.scales": np.ascontiguousarray(self.scales.T),
        }


def rounded(weight: Float32, group: int) -> Rounded:
    """Round (out, in) to nearest, with a scale and a zero for each group of inputs."""
    grouped = weight.reshape(len(weight), -1, group)
    low, high = np.minimum(grouped.min(2), 0), np.maximum(grouped.max(2), 0)
    scales = np.maximum((high - low) / _MOST, np.finfo(np.float16).tiny).astype(np.float16)
    steps = scales.astype(np.float32)
    zeros = np.clip(np.round(-low / steps), 0, _MOST)
    codes = np.clip(np.round(grouped / steps[..., None]) + zeros[..., None], 0, _MOST)
    return Rounded(codes.reshape(weight.shape).astype(np.uint8), scales, zeros.astype(np.uint8))


@dataclass(frozen=True, slots=True)
class Errors:
    """Mean squared errors of products on the samples, relative to the products.

    Attributes:
        nearest: With weights rounded to nearest.
        calibrated: With the scales that were found.
    """

    nearest: float
    calibrated: float


def search_scales(
    weights: Sequence[Float32], x: Float32, scaling: InputScaling, group: int, multiply: Multiply
) -> tuple[Float32, Errors]:
    """Search the scales of inputs with which rounded weights give the products best.

    Args:
        weights: (out, in) each, of the same inputs.
        x: (samples, in), inputs.
        scaling: Which inputs have a scale in common.
        group: Inputs that share a scale of the rounding.
        multiply: Computes x @ weight.T.

    Returns:
        (in,), all positive, and the errors.
    """
    sizes = scaling.shared(np.abs(x).mean(0)) + np.float32(1e-6)
    whole = np.concatenate(list(weights))
    expected = float(np.square(multiply(x, whole)).mean()) or 1.0
    best, found, nearest = np.ones_like(sizes), np.inf, 0.0
    for power in _POWERS:
        scale = sizes**power
        scale /= np.sqrt(scale.max() * scale.min())
        wrong = rounded(whole * scale, group).wide() / scale - whole
        error = float(np.square(multiply(x, wrong)).mean()) / expected
        nearest = error if power == 0 else nearest
        if error < found:
            best, found = scale, error
    return best, Errors(nearest, found)


def calibrate(
    weights: dict[str, Float32],
    scalings: Sequence[InputScaling],
    inputs: Mapping[str, Float32],
    group: int,
    multiply: Multiply,
) -> Errors:
    """Scale weights in place for rounding to 4 bits.

    Args:
        weights: Tensors by name.
        scalings: In the order in which they are searched.
        inputs: (samples, in) of each product.
        group: Inputs that share a scale of the rounding.
        multiply: Computes x @ weight.T.

    Returns:
        The means of the errors of all products.
    """
    every: list[Errors] = []
    for scaling in scalings:
        parts = [weights[name] for name in scaling.weights]
        scale, errors = search_scales(parts, inputs[scaling.product], scaling, group, multiply)
        every.append(errors)
        for name in scaling.weights:
            weights[name] = weights[name] * scale
        source, divided = weights[scaling.source], scaling.of_source(scale)
        weights[scaling.source] = source / (divided if source.ndim == 1 else divided[:, None])
    count = max(1, len(every))
    return Errors(sum(e.nearest for e in every) / count, sum(e.calibrated for e in every) / count)


def read_floats(folder: Path) -> dict[str, Float32]:
    """Read all tensors of a checkpoint that is not packed. Raises CheckpointError."""
    if layout_of(folder) is not None:
        raise CheckpointError(f"{folder} is quantized already: give the checkpoint in float")
    return {
        tensor.name: np.array(tensor.array(), np.float32)
        for path in weight_files(folder)
        for tensor in stored_tensors(path)
    }


def check_group(weights: Mapping[str, tuple[int, ...]], group: int) -> None:
    """Check that matrices can be rounded in such groups. Raises InvalidRequest."""
    for name, (outputs, inputs) in weights.items():
        if inputs % group or outputs % 8:
            raise InvalidRequest(
                f"{name} is {(outputs, inputs)}: its inputs are no whole groups of {group}, or its "
                "outputs no whole eights; try a smaller --group",
                param="group",
            )


def write_awq(
    folder: Path,
    source: Path,
    weights: Mapping[str, Float32],
    packed: Callable[[str], bool],
    group: int,
) -> None:
    """Write a checkpoint in 4 bits.

    Args:
        folder: Is made.
        source: The checkpoint in float, of which all other files are copied.
        weights: Its tensors, scaled.
        packed: Says which are rounded; the others are stored in 16 bits, vectors in 32.
        group: Inputs that share a scale.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in _COPIED:
        for path in source.glob(pattern):
            if not path.name.endswith(".index.json"):
                shutil.copyfile(path, folder / path.name)
    tensors: dict[str, npt.NDArray[Any]] = {}
    for name, weight in weights.items():
        if packed(name):
            tensors |= rounded(weight, group).tensors(name.removesuffix(".weight"))
        else:
            tensors[name] = weight if weight.ndim == 1 else weight.astype(np.float16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    described = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"}
    described |= {"zero_point": True, "modules_to_not_convert": None}
    config = read_json(source / "config.json") | {"quantization_config": described}
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def _words(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """Pack the last axis, eight codes to a word: (n, outputs) -> (n, outputs / 8)."""
    eights = codes.reshape(len(codes), -1, 8).astype(np.uint32)
    words = np.zeros(eights.shape[:-1], np.uint32)
    for nibble, output in enumerate(_ORDER):
        words |= eights[..., output] << np.uint32(4 * nibble)
    return words.view(np.int32)
