"""What does it cost to pass a request to another process, and its output back?

Processor time of encoding and decoding, without the socket: a request of the embedded voice, and
the output of one step for streams of tokens and for streams of 80 ms of audio.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.measure import arguments, write_result
from izwi.checkpoints.registry import Registry
from izwi.inputs.speech import SpeechInput
from izwi.request.request import Chunk
from izwi.request.serialization import Frame
from izwi_api.serve import wire

_ROUNDS, _REPEATS = 15, 200
_FRAME = 1920


def received(frames: Sequence[Frame]) -> list[Frame]:
    """Frames as received from a socket."""
    return [memoryview(bytes(frame)) for frame in frames]


def microseconds(work: Callable[[], object]) -> float:
    """Return the processor time of the fastest round."""
    rounds = []
    for _ in range(_ROUNDS):
        began_s = time.process_time()
        for _ in range(_REPEATS):
            work()
        rounds.append((time.process_time() - began_s) / _REPEATS * 1e6)
    return round(min(rounds), 2)


def main() -> None:
    """Measure, print and write."""
    options = arguments(__doc__).parse_args()
    registry = Registry()
    name = registry.load(options.model)
    ask = SpeechInput("The weather is nice today and we are going out.")
    request = registry.speech(name).prepare_speech("request-0", name, ask)
    codec = wire.RequestCodec()
    frames = received(codec.submit("api-server-0", [request]))
    rows: list[dict[str, object]] = [
        {
            "message": "request",
            "bytes": sum(map(len, frames)),
            "encode_us": microseconds(lambda: codec.submit("api-server-0", [request])),
            "decode_us": microseconds(lambda: codec.decode(frames)),
        }
    ]
    entries, pcm = np.zeros((1, 16), np.int64), np.zeros(_FRAME, np.float32)
    for count, kind in ((1, "tokens"), (64, "tokens"), (1, "audio"), (64, "audio")):
        chunks = [
            Chunk(f"request-{n}", entries, pcm if kind == "audio" else None) for n in range(count)
        ]
        rows.append({"message": f"{count} x {kind}", **cost_of(chunks)})
    write_result("wire_cost", rows)


def cost_of(chunks: Sequence[Chunk]) -> dict[str, object]:
    """Return the figures for the output of one step."""
    frames = received(wire.encode_chunks(chunks))
    return {
        "bytes": sum(map(len, frames)),
        "encode_us": microseconds(lambda: wire.encode_chunks(chunks)),
        "decode_us": microseconds(lambda: wire.decode_engine_message(frames)),
    }


if __name__ == "__main__":
    main()
