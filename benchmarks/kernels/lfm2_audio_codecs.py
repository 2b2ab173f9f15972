"""Time LFM2-Audio's features, encoder and codecs per second of audio, at published sizes.

Random weights. Reports `ms_per_audio_s`, milliseconds per second of audio over all rows of a batch:
features of one segment, encoder and adapter of segments of a few seconds, and both codecs in chunks
of a few frames (80 ms each) with carried state. On CUDA, encoder and codecs are captured as graphs,
like in the engine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.measure import write_result
from izwi.backends.torch.backend import torch_backend
from izwi.backends.torch.captured.capturer import GraphCapturer
from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.state import StateArena
from izwi_models.lfm2_audio.audio_config import (
    DetokenizerConfig,
    EncoderConfig,
    MimiConfig,
    PreprocessorConfig,
)
from izwi_models.lfm2_audio.audio_parts import log_mel
from izwi_models.lfm2_audio.audio_tensors import detokenizer_shapes, encoder_shapes, mimi_shapes
from izwi_models.lfm2_audio.codecs import FrameCodec, detokenizer_codec, mimi_codec
from izwi_models.lfm2_audio.segments import SegmentEncoder

_BACKBONE_WIDTH = 2048
_PREPROCESSOR = PreprocessorConfig(
    sample_rate=16_000,
    normalize="per_feature",
    window_size=0.025,
    window_stride=0.01,
    window="hann",
    features=128,
    n_fft=512,
    log=True,
    frame_splicing=1,
    pad_to=0,
)
_ENCODER = EncoderConfig(
    feat_in=128,
    feat_out=-1,
    n_layers=17,
    d_model=512,
    subsampling="dw_striding",
    subsampling_factor=8,
    subsampling_conv_channels=256,
    causal_downsampling=False,
    reduction=None,
    ff_expansion_factor=4,
    self_attention_model="rel_pos",
    n_heads=8,
    att_context_size=(-1, -1),
    xscaling=False,
    untie_biases=True,
    conv_kernel_size=9,
    conv_norm_type="batch_norm",
)
_DETOKENIZER = DetokenizerConfig(
    hidden_size=512,
    num_hidden_layers=8,
    layer_types=tuple("sliding_attention" if n in (2, 4, 6) else "conv" for n in range(8)),
    num_attention_heads=16,
    num_key_value_heads=8,
    intermediate_size=3328,
    norm_eps=1e-5,
    rope_theta=1e6,
    sliding_window=30,
    vocab_size=64,
)


def weights(ops: TorchOps, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Return small random weights; times do not depend on their values."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: (0.02 * torch.rand(shape, generator=generator)).to(ops.device, ops.dtype)
        for name, shape in shapes.items()
    }


def milliseconds(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the median time of a call, including the device's work, without the first call."""
    taken = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - began)
    return float(np.median(taken[1:])) * 1e3


def captured(run: Callable[[], torch.Tensor], ops: TorchOps) -> Callable[[], object]:
    """Return a call that repeats `run`, as a graph if the device captures."""
    if ops.device.type != "cuda":
        return run
    return GraphCapturer(ops.device).capture(run).launch


def encoder_rows(ops: TorchOps, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time features and encoder."""
    encoder = SegmentEncoder(ops, weights(ops, encoder_shapes(_ENCODER, _BACKBONE_WIDTH)), _ENCODER)
    rng = np.random.default_rng(0)
    rows = []
    for seconds in options.seconds:
        audio = rng.standard_normal(16_000 * seconds, dtype=np.float32)
        taken = milliseconds(
            lambda audio=audio: log_mel(_PREPROCESSOR, audio, 16_000),
            torch.device("cpu"),
            options.repeats,
        )
        row = {"part": "features", "seconds": seconds, "batch": 1, "ms": round(taken, 3)}
        rows.append(row | {"ms_per_audio_s": round(taken / seconds, 3)})
        for batch in options.batches:
            frames = 100 * seconds
            mel = torch.randn(batch, 128, frames).to(ops.device, ops.dtype)
            lengths = torch.full((batch,), frames, device=ops.device)
            run = captured(lambda m=mel, n=lengths: encoder.encode_padded(m, n), ops)
            taken = milliseconds(run, ops.device, options.repeats)
            row = {"part": "encoder", "seconds": seconds, "batch": batch, "ms": round(taken, 3)}
            rows.append(row | {"ms_per_audio_s": round(taken / (batch * seconds), 3)})
    return rows


def codec_rows(
    ops: TorchOps, name: str, codec: FrameCodec, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Time one codec; as in the runner, its state is gathered from rows and scattered to them."""
    rows = []
    for batch in options.batches:
        arena = StateArena(codec.state, batch, ops.device, ops.dtype)
        streams = torch.arange(batch, device=ops.device)
        for frames in options.frames:
            codes = torch.randint(0, 2048, (batch, frames, 8)).to(ops.device)

            def run(
                codes: torch.Tensor = codes,
                arena: StateArena = arena,
                streams: torch.Tensor = streams,
            ) -> torch.Tensor:
                audio, state = codec.decode(codes, arena.gather(streams))
                arena.scatter(streams, state)
                return audio

            taken = milliseconds(captured(run, ops), ops.device, options.repeats)
            audio_s = batch * frames * codec.frame_samples / codec.sample_rate
            row = {"part": name, "frames": frames, "batch": batch, "ms": round(taken, 3)}
            rows.append(row | {"ms_per_audio_s": round(taken / audio_s, 3)})
    return rows


@torch.inference_mode()
def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time all parts."""
    ops = torch_backend(options.device, options.dtype).ops
    mimi, detokenizer = MimiConfig(), _DETOKENIZER
    codecs = {
        "mimi": mimi_codec(ops, weights(ops, mimi_shapes(mimi)), mimi),
        "detokenizer": detokenizer_codec(
            ops, weights(ops, detokenizer_shapes(detokenizer)), detokenizer
        ),
    }
    rows = encoder_rows(ops, options)
    for name, codec in codecs.items():
        rows += codec_rows(ops, name, codec, options)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument(
        "--seconds", type=int, nargs="+", default=[4, 16], help="lengths of a segment"
    )
    parser.add_argument("--frames", type=int, nargs="+", default=[1, 12], help="frames of a chunk")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rows = measure(options)
    for row in rows:
        print(row)
    name = "lfm2_audio_codecs" + ("" if options.device == "cpu" else f"_{options.device}")
    write_result(name, rows, dtype=options.dtype, threads=torch.get_num_threads())


if __name__ == "__main__":
    main()
