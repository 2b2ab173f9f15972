"""What do the decoders' weights in 8 or 4 bits save, and what do they cost in accuracy and time?

The embedded models speak and transcribe with each kind, and score the output of the unquantized
weights. The same is done for a published size with random weights; on CUDA its frame is also timed.
"""

from __future__ import annotations

import asyncio
import gc
import re
import time
from collections.abc import Sequence as Seq
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from benchmarks.measure import TEXTS, arguments, write_result
from benchmarks.random_checkpoint import load
from benchmarks.tts.forced import logits_of
from benchmarks.tts.frame_time import graph_rows
from benchmarks.tts.kv_dtype import Voice
from izwi.arrays import Float32
from izwi.backends.torch.backend import torch_backend
from izwi.backends.torch.ops import TorchOps
from izwi.checkpoints.registry import Registry
from izwi.config import WEIGHTS, EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.speech import SpeechInput
from izwi.request.sequence import Sequence

Log = Seq[Seq[int]]
LARGE = ("tts-1.7b", "tts-0.6b")
STREAMS = [1, 2, 8, 32, 64]
_FRAMES = 52
_KINDS = tuple(weights for weights in WEIGHTS if weights != "float")  # the same as auto here


def agreement(ours: list[list[Tensor]], full: list[list[Tensor]]) -> dict[str, float]:
    """Return how similar logits are, over texts and codebooks."""
    pairs = list(zip(chain(*ours), chain(*full), strict=True))
    cosines = torch.cat([cosine_similarity(a, b, dim=-1) for a, b in pairs])
    same = torch.cat([a.argmax(-1) == b.argmax(-1) for a, b in pairs])
    return {
        "logit_cosine_mean": round(float(cosines.mean()), 6),
        "logit_cosine_least": round(float(cosines.min()), 6),
        "argmax_equal_percent": round(100 * float(same.float().mean()), 2),
    }


def of_logs(registry: Registry, name: str, ops: TorchOps, logs: Seq[Log]) -> list[list[Tensor]]:
    """Return the logits of a number of texts, each along its log."""
    found = []
    for text, log in zip(TEXTS, logs, strict=False):
        request = registry.speech(name).prepare_speech(
            "", "", SpeechInput(text=text, temperature=0.0)
        )
        sequence = Sequence(request, 0)
        sequence.emitted += [tuple(entry) for entry in log]
        found.append(logits_of(registry.models[name], ops, sequence))
    return found


def understood(heard: Seq[str]) -> float:
    """Return the share of the texts' words that were transcribed."""
    words = [
        (word, theirs)
        for text, theirs in zip(TEXTS, heard, strict=True)
        for word in re.findall(r"[a-z]+", text.lower())
    ]
    return sum(word in re.findall(r"[a-z]+", theirs.lower()) for word, theirs in words) / len(words)


async def embedded_rows(options: Any) -> list[dict[str, Any]]:
    """Measure one row for each dtype: logits, codes, transcripts, time."""
    spoken: list[tuple[list[list[int]], Float32]] = []
    heard: list[str] = []
    full: list[list[Tensor]] = []
    rows = []
    for weights in _KINDS:
        backend = torch_backend(options.device, options.dtype, weights)
        registry = Registry(backend)
        for source in (options.model, "izwi-tiny-asr"):
            registry.load(source)
        settings = EngineConfig(kv_bytes=256 << 20)
        voice = Voice(registry, Engine(registry.models, backend, settings))
        voice.engine.start()
        began = time.perf_counter()
        said = [await voice.say(text) for text in TEXTS]
        seconds = time.perf_counter() - began
        spoken = spoken or said
        # the same audio for all, so that only the transcriber's weights differ
        texts = [await voice.transcribe(audio) for _, audio in spoken]
        heard = heard or texts
        own = [await voice.transcribe(audio) for _, audio in said]
        await voice.engine.stop()
        ours = of_logs(registry, voice.tts, backend.ops, [codes for codes, _ in spoken])
        full = full or ours
        same = [
            float(np.mean([a == b for a, b in zip(codes, theirs, strict=False)]))
            for (codes, _), (theirs, _) in zip(said, spoken, strict=True)
        ]
        rows.append(
            {
                "model": options.model,
                "weights": weights,
                **agreement(ours, full),
                "frames_equal_percent": round(100 * float(np.mean(same)), 1),
                "transcripts_equal": sum(a == b for a, b in zip(texts, heard, strict=True)),
                "texts": len(TEXTS),
                "words_understood_percent": round(100 * understood(own), 1),
                "speaking_seconds": round(seconds, 2),
            }
        )
    return rows


def large_rows(options: Any, size: str) -> list[dict[str, Any]]:
    """Measure one row for each dtype: logits of a random log; on CUDA also its captured steps."""
    full: list[list[Tensor]] = []
    rows = []
    for weights in _KINDS:
        registry, backend = load(size, options.device, options.dtype, _FRAMES, weights)
        model = registry.models[size]
        log = (
            np.random.default_rng(0)
            .integers(0, 2048, (_FRAMES, model.tracks[0].num_codebooks))
            .tolist()
        )
        ours = of_logs(registry, size, backend.ops, [log])
        full = full or ours
        rows.append({"model": f"{size}, random", "weights": weights, **agreement(ours, full)})
        if backend.ops.captures:
            settings = EngineConfig(max_running=max(STREAMS), kv_bytes=4 << 30)
            engine = Engine(registry.models, backend, settings)
            rows += [{"weights": weights, **row} for row in graph_rows(engine, STREAMS)]
            del engine
        del registry, backend, model
        gc.collect()
        torch.cuda.empty_cache()  # nothing without CUDA
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--size", choices=LARGE, help="default on CUDA: the first")
    parser.add_argument("--size-alone", action="store_true", help="leave out the embedded models")
    options = parser.parse_args()
    on_cuda = torch.device(options.device).type == "cuda"
    size = options.size or (LARGE[0] if on_cuda or options.size_alone else None)
    rows = [] if options.size_alone else asyncio.run(embedded_rows(options))
    if size is not None:
        rows += large_rows(options, size)
    write_result(f"weight_dtype_{size}" if options.size_alone else "weight_dtype", rows)


if __name__ == "__main__":
    main()
