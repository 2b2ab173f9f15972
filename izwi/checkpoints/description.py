"""What a checkpoint is: its family, how its weights are stored, and how large its files are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from izwi.checkpoints.formats.choice import layout_of
from izwi.checkpoints.gguf_file import read_gguf
from izwi.checkpoints.gguf_folder import gguf_path
from izwi.checkpoints.registry import family_of
from izwi.checkpoints.stored_tensor import stored_tensors
from izwi.checkpoints.weight_files import check_tensors, packed_forms, weight_files

# What users of each dtype of safetensors call it.
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "FP8 (e4m3)"}


@dataclass(frozen=True, slots=True)
class CheckpointDescription:
    """One checkpoint.

    Attributes:
        family: The `model_type` that loads it.
        title: How its weights are stored: "GPTQ, 4 bits in groups of 128", "bfloat16".
        bits: Bits of a packed weight in the file's matrices on average; None if none is packed.
        num_bytes: Size of its weight files.
    """

    family: str
    title: str
    bits: float | None
    num_bytes: int

    def __str__(self) -> str:
        size = f"{self.num_bytes / 1e6:.1f} MB"
        bits = "" if self.bits is None else f", {self.bits:.1f} bits a weight when loaded"
        return f"{self.family}, {self.title}{bits}, {size}"


def describe(folder: Path) -> CheckpointDescription:
    """Describe a checkpoint from its configuration and the heads of its files.

    Raises:
        CheckpointError: It is broken or no family loads it: a key, a tensor or its shape is wrong,
            and is named. Numbers are not read.
    """
    family = family_of(folder)
    shapes = family.read_sizes(folder).weights[0]
    check_tensors(folder, shapes)
    forms = packed_forms(folder, shapes).values()
    numbers = sum(form.outputs * form.inputs for form in forms)
    bits = 8 * sum(form.num_bytes for form in forms) / numbers if numbers else None
    packed = gguf_path(folder)
    files = [packed] if packed is not None else weight_files(folder)
    num_bytes = sum(path.stat().st_size for path in files)
    return CheckpointDescription(family.model_type, _title(folder), bits, num_bytes)


def _title(folder: Path) -> str:
    packed = gguf_path(folder)
    if packed is not None:
        return read_gguf(packed, only=("general.", "split.")).title
    layout = layout_of(folder)
    if layout is not None:
        return layout.title
    sizes: dict[str, int] = {}
    for path in weight_files(folder):
        for tensor in stored_tensors(path):
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.num_values
    most = max(sizes, key=lambda dtype: sizes[dtype])
    return _DTYPES.get(most, most)
