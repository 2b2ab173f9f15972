"""Images by a pipeline of a published size with random weights, and speech beside it.

    python -m benchmarks.serving.drawing --device cuda --size 1024 --steps 30 --images-mib 24000

Writes a pipeline of Stable Diffusion XL's sizes (`--tiny`: the tests' one), serves it with
`--images`, and times images alone, speech alone, and both together.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks.measure import write_result
from tests.drawing.tiny_pipeline import letters_tokenizer, write_tiny_pipeline

TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on in the warm sun."
PROGRAM = (sys.executable, "-c", "from izwi_api.cli.run import main; main()")


def write_xl(folder: Path, device: str) -> None:
    """Write a pipeline of Stable Diffusion XL's sizes."""
    import torch
    from diffusers import AutoencoderKL, EulerDiscreteScheduler, StableDiffusionXLPipeline
    from diffusers import UNet2DConditionModel as UNet
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    common = {"vocab_size": 49408, "bos_token_id": 0, "eos_token_id": 1}
    small = CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_attention_heads=12, num_hidden_layers=12,
        projection_dim=768, **common,
    )  # fmt: skip
    large = CLIPTextConfig(
        hidden_size=1280, intermediate_size=5120, num_attention_heads=20, num_hidden_layers=32,
        projection_dim=1280, hidden_act="gelu", **common,
    )  # fmt: skip
    tokenizer = letters_tokenizer(folder.with_name(folder.name + "-tokenizer"))
    with torch.device(device):
        pipeline = StableDiffusionXLPipeline(
            unet=UNet(
                sample_size=128,
                addition_embed_type="text_time",
                addition_time_embed_dim=256,
                projection_class_embeddings_input_dim=2816,
                attention_head_dim=[5, 10, 20],
                block_out_channels=(320, 640, 1280),
                cross_attention_dim=2048,
                down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
                up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
                transformer_layers_per_block=[1, 2, 10],
                use_linear_projection=True,
            ),
            vae=AutoencoderKL(
                block_out_channels=(128, 256, 512, 512),
                down_block_types=["DownEncoderBlock2D"] * 4,
                up_block_types=["UpDecoderBlock2D"] * 4,
                latent_channels=4,
                layers_per_block=2,
                sample_size=1024,
                scaling_factor=0.13025,
            ),
            scheduler=EulerDiscreteScheduler(),
            text_encoder=CLIPTextModel(small),
            text_encoder_2=CLIPTextModelWithProjection(large),
            tokenizer=tokenizer,
            tokenizer_2=tokenizer,
        )
    pipeline.to(dtype=torch.bfloat16)
    pipeline.save_pretrained(folder)


@contextmanager
def served(folder: Path, options: argparse.Namespace) -> Iterator[str]:
    """Serve the embedded voice and the pipeline; yield the address."""
    more = ("--images", str(folder), "--images-mib", str(options.images_mib))
    command = (*PROGRAM, "serve", "--model", options.speech, "--port", "8321", *more)
    process = subprocess.Popen(
        (*command, "--device", options.device), env=os.environ | {"IZWI_HOME": str(folder.parent)}
    )
    url = "http://127.0.0.1:8321"
    try:
        for _ in range(600):
            try:
                if httpx.get(f"{url}/readyz").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.2)
            if process.poll() is not None:
                raise SystemExit("the server did not start")
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def draw(url: str, options: argparse.Namespace, seed: int) -> float:
    """Draw an image; returns the seconds."""
    size = f"{options.size}x{options.size}"
    body = {"prompt": "a red cat", "size": size, "steps": options.steps, "seed": seed}
    began = time.perf_counter()
    answer = httpx.post(f"{url}/v1/images/generations", json=body, timeout=300)
    if answer.status_code != 200:
        raise SystemExit(answer.text[:500])
    return time.perf_counter() - began


def speak(url: str) -> dict[str, float]:
    """Speak a sentence as a stream; returns its first audio, its longest wait, and its seconds."""
    body = {"model": "izwi-tiny-tts", "input": TEXT, "response_format": "pcm", "voice": "hugo"}
    began = last = time.perf_counter()
    first = longest = 0.0
    with httpx.stream("POST", f"{url}/v1/audio/speech", json=body, timeout=300) as answer:
        for _ in answer.iter_raw():
            now = time.perf_counter()
            longest = max(longest, now - last) if first else 0.0
            first = first or now - began
            last = now
    seconds = time.perf_counter() - began
    return {"first_audio_ms": 1e3 * first, "longest_wait_ms": 1e3 * longest, "seconds": seconds}


def spoken_row(found: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure, and the number of answers."""
    middle = {key: round(median(one[key] for one in found), 3) for key in found[0]}
    worst = max(one["longest_wait_ms"] for one in found)
    return {"answers": len(found), "worst_wait_ms": round(worst, 1)} | middle


def measure(url: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time images alone, speech alone, and both together."""
    rows: list[dict[str, Any]] = [
        {"what": "first image", "seconds": round(draw(url, options, 0), 2)}
    ]
    print(rows, flush=True)
    alone = [draw(url, options, 1 + n) for n in range(options.images)]
    rows.append({"what": "image", "seconds": round(median(alone), 3)})
    for _ in range(3):
        speak(url)
    rows.append({"what": "speech"} | spoken_row([speak(url) for _ in range(10)]))
    print(rows, flush=True)
    beside: list[float] = []

    def keep_drawing() -> None:
        beside.extend(draw(url, options, 9 + n) for n in range(options.images))

    drawing = threading.Thread(target=keep_drawing)
    drawing.start()
    found = []
    while drawing.is_alive():
        found.append(speak(url))
    drawing.join()
    rows.append({"what": "speech beside images"} | spoken_row(found))
    rows.append({"what": "image beside speech", "seconds": round(median(beside), 3)})
    return rows


def main() -> None:
    """Write the pipeline, serve it, and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--speech", default="izwi-tiny-tts", help="[NAME=]SOURCE")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--images", type=int, default=3)
    parser.add_argument("--images-mib", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "pipeline")
        began = time.perf_counter()
        if options.tiny:
            write_tiny_pipeline(folder)
        else:
            write_xl(folder, options.device)
        print(f"written in {time.perf_counter() - began:.1f} s", flush=True)
        with served(folder, options) as url:
            rows = measure(url, options)
    shape = {"size": options.size, "steps": options.steps, "images_mib": options.images_mib}
    write_result("drawing_tiny" if options.tiny else "drawing_xl", rows, **shape)


if __name__ == "__main__":
    main()
