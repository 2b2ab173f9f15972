"""Compare step times of backends: chat and speech, with one stream and with eight.

Requests never repeat: each has its own text and seed, and a fixed number of entries.
    python -m benchmarks.backends --devices cpu mlx --chat FOLDER
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks.measure import TEXTS, arguments, write_result
from izwi.backends.choice import open_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.inputs.speech import SpeechInput
from izwi.request.request import Request


def request_of(registry: Registry, name: str, number: int, entries: int) -> Request:
    """Return a new request that ends after a fixed number of entries."""
    text = f"{number}: {TEXTS[number % len(TEXTS)]}"
    model: Any = registry.model(name)
    if "chat" in model.capabilities:
        ask = ChatInput((ChatMessage(Role.USER, text),), temperature=0.9, seed=number)
        made = model.prepare_chat(str(number), name, ask)
    else:
        voice = model.speakers[0]
        made = model.prepare_speech(
            str(number), name, SpeechInput(text, voice=voice, seed=number, temperature=0.9)
        )
    return replace(made, max_entries=entries, min_entries=entries)


def measure(registry: Registry, engine: Engine, name: str, streams: int, entries: int) -> Any:
    """Run streams together, twice, and time the second round."""
    row: dict[str, Any] = {}
    for offset in (0, 1000):
        for n in range(streams):
            engine.submit(request_of(registry, name, offset + 10 * streams + n, entries))
        began, steps, num_samples = time.perf_counter(), [], 0
        while engine.has_work:
            before = time.perf_counter()
            for chunk in engine.step():
                assert chunk.error is None, chunk.error
                num_samples += 0 if chunk.pcm is None else len(chunk.pcm)
            steps.append(time.perf_counter() - before)
        seconds = time.perf_counter() - began
        row = {
            "model": name,
            "streams": streams,
            "step_ms_p50": round(1e3 * float(np.median(steps)), 2),
            "entries_per_s": round(streams * entries / seconds, 1),
        }
        if num_samples:
            row["audio_s_per_s"] = round(num_samples / 24_000 / seconds, 2)
    return row


def main() -> None:
    """Measure, print and write."""
    parser = arguments(__doc__)
    parser.add_argument("--devices", nargs="+", default=["cpu", "mlx"])
    parser.add_argument("--chat", help="folder of a chat checkpoint to measure, too")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--entries", type=int, default=24)
    options = parser.parse_args()
    rows = []
    for device in options.devices:
        backend = open_backend(device, options.dtype)
        registry = Registry(backend)
        for source in filter(None, (options.model, options.chat)):
            registry.load(source)
        engine = Engine(registry.models, backend, EngineConfig(kv_bytes=1 << 26))
        for name in registry.names():
            for streams in options.streams:
                row = measure(registry, engine, name, streams, options.entries)
                rows.append({"device": device, "library": backend.library, **row})
    write_result("backends", rows)


if __name__ == "__main__":
    main()
