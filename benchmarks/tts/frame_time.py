"""How long does a frame take, by talker, code predictor, codec and host?

On a GPU it uses a published size with random weights: first captured steps alone by device events,
then the engine's loop with that many streams. On a CPU it times the loop with the embedded voice.
"""

from __future__ import annotations

import argparse
import time
from itertools import count
from typing import Any

import torch

from benchmarks.kernels.device_time import device_ms, kernel_rows
from benchmarks.measure import TEXTS, write_result
from benchmarks.random_checkpoint import EMBEDDED, SPEAKING, load
from izwi.backends.torch.backend import TorchBackend
from izwi.backends.torch.captured.codec_graphs import CodecGraphs
from izwi.backends.torch.captured.decode_graphs import DecodeGraphs, DecodeKind, DrawKind
from izwi.config import WEIGHTS, EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.speech import SpeechInput
from izwi.model.frontend import SpeechFrontend

_CONTEXT = 100  # positions before the new one


def _graphs(engine: Engine) -> tuple[DecodeGraphs, CodecGraphs]:
    graphs = next(iter(engine._workers.values())).runner._graphs
    assert graphs is not None
    assert graphs.decodes is not None
    assert graphs.codec is not None
    return graphs.decodes, graphs.codec


@torch.inference_mode()
def graph_rows(engine: Engine, sizes: list[int]) -> list[dict[str, Any]]:
    """Measure the device time of the captured steps alone."""
    decodes, codec = _graphs(engine)
    rows = []
    for size in sizes:
        batch, drawing = decodes._rows(size), decodes._drawing(0, size)
        assert batch.staged.draws is not None
        batch.staged.stage_runs([(_CONTEXT, _CONTEXT + 1, range(_CONTEXT // 16 + 1))] * size)
        for staged in (batch.staged.draws, drawing.staged):
            for which, penalty in (("first", 1.05), ("rest", 1.0)):
                for column, value in (("scale", 0.9), ("top_k", 50), ("top_p", 1.0)):
                    staged.host[f"{which}.{column}"][:] = value
                staged.host[f"{which}.penalty"][:] = penalty
        batch.staged.send()
        drawing.staged.send()
        frame = device_ms(batch.graphs[DecodeKind(True, DrawKind())].launch)
        predictor = device_ms(drawing.graphs[DrawKind()].launch)
        row: dict[str, Any] = {
            "streams": size,
            "frame_ms": round(frame, 3),
            "talker_ms": round(frame - predictor, 3),
            "predictor_ms": round(predictor, 3),
        }
        for frames in codec._frames:
            graph = codec._graph(next(s for s in codec._sizes if s >= size), frames).graph
            row[f"codec_{frames}_ms"] = round(device_ms(graph.launch), 3)
        rows.append(row)
    return rows


_numbers = count()


def loop_row(engine: Engine, model: SpeechFrontend, name: str, streams: int) -> dict[str, Any]:
    """Run a number of streams that start together, to their ends."""
    for number in range(streams):
        ask = SpeechInput(text=TEXTS[number % len(TEXTS)], voice=model.speakers[0], seed=number)
        # a new name, because a known one would be the next piece of a listener still playing
        engine.submit(model.prepare_speech(f"stream-{next(_numbers)}", name, ask))
    began, first, samples, steps = time.perf_counter(), 0.0, 0, []
    while engine.has_work:
        step_began = time.perf_counter()
        for chunk in engine.step():
            if chunk.error is not None:
                raise chunk.error
            if chunk.pcm is not None:
                first = first or time.perf_counter() - began
                samples += len(chunk.pcm)
        steps.append(time.perf_counter() - step_began)
    wall = time.perf_counter() - began
    audio_s = samples / model.sample_rate
    return {
        "streams": streams,
        "first_audio_ms": round(first * 1e3, 2),
        "step_ms_p50": round(sorted(steps)[len(steps) // 2] * 1e3, 3),
        "step_ms_p95": round(sorted(steps)[int(len(steps) * 0.95)] * 1e3, 3),
        "rtf": round(wall / (audio_s / streams), 4),
        "audio_s_per_s": round(audio_s / wall, 1),
    }


def profile(engine: Engine, size: int, most: int = 18) -> list[dict[str, Any]]:
    """List the kernels of one frame by their share of the device's time."""
    decodes, _ = _graphs(engine)
    graph = decodes._rows(size).graphs[DecodeKind(True, DrawKind())]
    return kernel_rows(graph.launch, most, streams=size)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    on_gpu = torch.cuda.is_available()
    size = "tts-1.7b" if on_gpu else EMBEDDED
    parser.add_argument("--size", choices=SPEAKING, default=size)
    streams = [1, 8, 32, 64] if on_gpu else [1, 2, 4, 8]
    parser.add_argument("--streams", type=int, nargs="+", default=streams)
    parser.add_argument("--frames", type=int, default=52)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--weights", choices=WEIGHTS, default="auto")
    parser.add_argument("--profile", type=int, nargs="*", default=[])
    options = parser.parse_args()
    registry, backend = load(
        options.size, options.device, options.dtype, options.frames, options.weights
    )
    model, ops = registry.speech(options.size), backend.ops
    began = time.perf_counter()
    engine = Engine(
        registry.models, TorchBackend(ops), EngineConfig(max_running=max(options.streams))
    )
    if ops.device.type == "cuda":
        torch.cuda.synchronize()
    setup_s = time.perf_counter() - began
    graphs = graph_rows(engine, options.streams) if ops.captures else []
    loops = []
    for streams in options.streams:
        loop_row(engine, model, options.size, streams)  # warms up
        loops.append(loop_row(engine, model, options.size, streams))
    kernels = [row for size in options.profile for row in profile(engine, size)]
    name = "frame_time" if options.size == "tts-1.7b" else f"frame_time_{options.size}"
    write_result(
        name if options.weights == "auto" else f"{name}_{options.weights}",
        [*graphs, *loops, *kernels],
        size=options.size,
        frames=options.frames,
        dtype=str(ops.dtype),
        setup_s=round(setup_s, 1),
    )


if __name__ == "__main__":
    main()
