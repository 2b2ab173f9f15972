"""A question about one picture, by Qwen3-VL of a published size: times, memory, and ids by graphs.

    python -m benchmarks.chat.seeing --size 2B --device cuda --side 1024

Random weights. The encoder's peak is beside what the memory plan leaves for it, and the greedy ids
of captured steps beside those of steps without.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.measure import write_result
from benchmarks.random_checkpoint import RandomBackend
from izwi.backends.torch.backend import torch_backend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.request.request import EncodeInput, Request, SamplingParams
from izwi_models.qwen3_vl import FAMILY
from izwi_models.qwen3_vl.config import read_config
from izwi_models.qwen3_vl.model import read_sizes
from izwi_models.qwen3_vl.pixels import patches_of
from izwi_models.qwen3_vl.prompt import IMAGE, place_images
from tests.models.tiny_vl import PIXELS, TINY

_GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "vl.npz"


def write_folder(size: str, folder: Path) -> None:
    """Write a checkpoint's folder of a published size without weights."""
    config, pixels = TINY, PIXELS
    if size != "tiny":
        config = json.loads(str(np.load(_GOLDEN)["real"]))[size]["config"]
        edges = {"longest_edge": 4096 * 4096, "shortest_edge": 256 * 256}
        pixels = PIXELS | {"size": edges, "patch_size": config["vision_config"]["patch_size"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")  # no tensors


def request_of(folder: Path, name: str, side: int, tokens: int, salt: int) -> Request:
    """Return a request: some text, a picture, and a question."""
    config = read_config(folder)
    chance = np.random.default_rng(salt)
    pixels = chance.integers(0, 256, (side, side, 3), dtype=np.uint8)
    patches = patches_of(config.vision, pixels)
    ids = chance.integers(0, 200, 40).tolist()
    ids[20] = config.image_token_id
    prompt = place_images(config, ids, (EncodeInput(IMAGE, patches),), (False, 0))
    return Request(f"{name}-{tokens}", "m", prompt, SamplingParams(0.0), max_entries=tokens)


def run(engine: Engine, request: Request) -> tuple[dict[str, float], list[int]]:
    """Time one answer."""
    engine.submit(request)
    began, ids = time.perf_counter(), []
    first_s = 0.0
    while engine.has_work:
        for chunk in engine.step():
            if chunk.error is not None:
                raise chunk.error
            if not ids and len(chunk.entries):
                first_s = time.perf_counter() - began
            ids += chunk.entries[:, 0].tolist()
    rest_s = time.perf_counter() - began - first_s
    figures = {"first_token_ms": 1e3 * first_s, "token_ms": 1e3 * rest_s / max(1, len(ids) - 1)}
    return figures, ids


def encoder_row(model: Any, request: Request, device: str) -> dict[str, float]:
    """Time the encoder alone, with the most memory that it takes above its weights."""
    (image,) = request.prompt.encode_inputs
    seconds = []
    peak = 0
    for _ in range(4):
        if device.startswith("cuda"):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        began = time.perf_counter()
        with torch.inference_mode():
            model.encode([image])
        if device.startswith("cuda"):
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - before
        seconds.append(time.perf_counter() - began)
    return {"encode_ms": round(1e3 * median(seconds[1:]), 2), "encode_peak_bytes": peak}


def main() -> None:
    """Measure one size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--kv-mib", type=int, default=4096)
    options = parser.parse_args()
    backend = RandomBackend(torch_backend(options.device, "auto").ops)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "m")
        folder.mkdir()
        write_folder(options.size, folder)
        model = FAMILY.load_model(folder, backend)
        sizes = read_sizes(folder)
        requests = [
            request_of(folder, str(n), options.side, options.tokens, salt=n) for n in range(4)
        ]
    itemsize = backend.ops.dtype.itemsize
    row = encoder_row(model, requests[0], options.device)
    (encoder,) = sizes.whole_encoders
    patches = requests[0].prompt.encode_inputs[0].values.shape
    row["planned_bytes"] = encoder.peak_values(patches, 1) * itemsize
    row["planned_largest_bytes"] = encoder.peak_values(encoder.shapes[0], 1) * itemsize
    ids: dict[bool, list[list[int]]] = {}
    timed: dict[bool, list[dict[str, float]]] = {}
    for graphs in (True, False):
        engine = Engine(
            {"m": model}, backend, EngineConfig(kv_bytes=options.kv_mib << 20, graphs=graphs)
        )
        found = [run(engine, request) for request in requests]
        timed[graphs] = [figures for figures, _ in found[1:]]
        ids[graphs] = [one for _, one in found]
        del engine
    for key in timed[True][0]:
        row[key] = round(median(one[key] for one in timed[True]), 2)
        row[f"{key}_without_graphs"] = round(median(one[key] for one in timed[False]), 2)
    row["same_ids"] = round(float((np.array(ids[True]) == np.array(ids[False])).mean()), 3)
    row["prompt_tokens"] = requests[0].prompt.num_positions
    write_result(f"seeing_{options.size}", [row], size=options.size, side=options.side)


if __name__ == "__main__":
    main()
