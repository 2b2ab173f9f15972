"""How much CPU time does the API server take per request and per chunk?

The server runs in its own process with a fake engine that has every chunk ready at once, each in a
separate turn of the event loop. What remains is the API server: HTTP, validation, middleware,
encoding, sending. Clients keep connections open and read 16-bit PCM. Processor time is from the
kernel, for the event loop's thread and for all threads of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.measure import write_result
from izwi.arrays import Int64
from izwi.engine_client.protocol import Answer, Answers
from izwi.inputs.speech import SpeechInput
from izwi.model.capability import Capability
from izwi.model.frontend import AudioEntries
from izwi.request.request import Chunk, Reason, Request
from izwi.request.timing import Timing
from izwi_api.usage.keys import add_key
from izwi_api.usage.limits import KeyLimits

_RATE = 24_000
_FRAME = 1920
_TEXT = "The weather is nice today and we are going out."
_LIMITS = KeyLimits(requests_per_minute=10_000_000, characters_per_day=10_000_000_000)
_START_S = 60.0
# What an engine says of the phases of a request.
_BEGUN = Timing(1e-4, 2e-4, 3e-4)
_ENDED = Timing(1e-4, 2e-4, 3e-4, 4e-4, 5e-4, num_cached=16)


@dataclass(frozen=True)
class InstantPrompt:
    """A prompt that is never run."""

    num_positions: int = 24
    encode_inputs: tuple[()] = ()
    content_keys: Int64 = field(default_factory=lambda: np.zeros(24, np.int64))


class InstantSpeech:
    """A model whose requests need no preparation."""

    capabilities = (Capability.SPEAK,)
    audio_entries = AudioEntries()
    sample_rate = _RATE
    speakers = ("amber",)
    languages = ("english",)
    can_clone = False
    follows_instructions = False

    def split_text(self, text: str) -> list[str]:
        """Return the text as one piece."""
        return [text]

    def prepare_speech(self, request_id: str, model: str, ask: SpeechInput) -> Request:
        """Return a request without work."""
        return Request(request_id, model, InstantPrompt(), seed=ask.seed, max_entries=64, ask=ask)


class InstantAnswer(Answer):
    """An answer that yields the same chunks, each in a separate turn of the event loop."""

    def __init__(self, chunks: Sequence[Chunk]):
        self._left = iter(chunks)

    async def __anext__(self) -> Chunk:
        await asyncio.sleep(0)
        try:
            return next(self._left)
        except StopIteration:
            raise StopAsyncIteration from None

    def abort(self) -> None:
        """Do nothing: no request runs."""


class InstantEngine:
    """An engine with immediate output; a request's seed is its number of chunks."""

    def __init__(self) -> None:
        self.alive = False
        pcm = (0.3 * np.sin(np.arange(4 * _FRAME) / 20)).astype(np.float32)
        codes = np.zeros((4, 16), np.int64)
        self._chunk = Chunk("instant", codes, pcm=pcm)
        self._first = Chunk("instant", codes, pcm=pcm, timing=_BEGUN)
        self._last = Chunk("instant", codes, pcm=pcm, reason=Reason.STOP, timing=_ENDED)

    @property
    def load(self) -> Mapping[str, Mapping[str, float]]:
        """Return no figures."""
        return {}

    def start(self) -> None:
        """Mark the engine as ready."""
        self.alive = True

    async def stop(self) -> None:
        """Mark the engine as not ready."""
        self.alive = False

    def submit_all(self, requests: Sequence[Request]) -> Answers[Answer]:
        """Return the output at once."""
        first = self._first, *[self._chunk] * 1_000
        return Answers(
            InstantAnswer([*first[: request.seed - 1], self._last]) for request in requests
        )

    def submit(self, request: Request) -> Answer:
        """Return the output at once."""
        return self.submit_all([request])[0]


class InstantRegistry:
    """A registry of one model."""

    def __init__(self) -> None:
        self._model = InstantSpeech()

    def names(self) -> list[str]:
        """Return its name."""
        return ["tts"]

    def model(self, name: str) -> InstantSpeech:
        """Return the model."""
        del name
        return self._model

    def adapter(self, name: str) -> None:
        """None: no name is an adapter's."""

    def adapters_of(self, name: str) -> list[str]:
        """Return none."""
        del name
        return []

    def fingerprint(self, name: str) -> str:
        """Return the same text for every model."""
        return name

    speech = model


def serve(home: Path, keyed: bool, profile: Path | None) -> None:
    """Serve on a free port and print it; stop when stdin closes."""
    import cProfile
    import socket
    import threading

    from izwi_api.http.server import Server, server_config
    from izwi_api.serve.app import create_app
    from izwi_api.serve.redaction import redact_records
    from izwi_api.settings import Access, Settings

    access = Access(allowed_hosts=())
    if keyed:
        access = Access(api_keys_file=home / "keys.toml", audit_log=home / "audit.jsonl")
    settings = Settings(home=home, decode_workers=0, access=access)
    app = create_app(InstantEngine(), InstantRegistry(), settings)  # type: ignore[arg-type]
    logging.basicConfig(level=logging.INFO)  # like `izwi serve`
    redact_records()
    config = server_config(app, "127.0.0.1", 0, settings.pace.max_head_s)

    class Announced(Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            print(self.servers[0].sockets[0].getsockname()[1], flush=True)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the access log

    server = Announced(config, app.state.izwi.drain, 1.0)

    def until_delivered() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=until_delivered, daemon=True).start()
    if profile is None:
        server.run()
        return
    with cProfile.Profile() as profiler:
        server.run()
    profiler.dump_stats(profile)


class Served:
    """The server's process."""

    def __init__(self, home: Path, keyed: bool, profile: str | None):
        command = [sys.executable, "-m", "benchmarks.serving.api_server_cost", "--serve", str(home)]
        command += ["--keyed"] * keyed + (["--profile", profile] if profile else [])
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        until_s = time.monotonic() + _START_S
        while time.monotonic() < until_s:
            try:
                httpx.get(f"http://127.0.0.1:{self.port}/livez")
                return
            except httpx.TransportError:
                time.sleep(0.05)
        raise RuntimeError("the server was not ready in time")

    def cpu_ms(self) -> tuple[float, float]:
        """Return processor time so far in ms: of the event loop's thread, and of all threads."""
        spent = {
            int(task.name): int((task / "schedstat").read_text().split()[0]) / 1e6
            for task in Path(f"/proc/{self.process.pid}/task").iterdir()
        }
        return spent[self.process.pid], sum(spent.values())

    def stop(self) -> None:
        """Stop the server."""
        self.process.communicate("")


async def ask(port: int, chunks: int, key: str | None, count: int, streams: int) -> float:
    """Send requests over a number of open connections; return the seconds that it took."""
    body = json.dumps(
        {
            "model": "tts",
            "input": _TEXT,
            "voice": "amber",
            "response_format": "pcm",
            "seed": chunks,
        }
    ).encode()
    head = f"POST /v1/audio/speech HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
    head += "accept: application/octet-stream\r\nuser-agent: OpenAI/Python 3.54.0\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    head += f"authorization: Bearer {key}\r\n" if key else ""
    content = head.encode() + b"\r\n" + body

    async def connection(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(number):
            writer.write(content)
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(answer.decode())
            while size := int(await reader.readline(), 16):
                await reader.readexactly(size + 2)
            await reader.readexactly(2)
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(connection(count // streams) for _ in range(streams)))
    return time.perf_counter() - began


def one_round(
    served: Served, chunks: int, key: str | None, options: argparse.Namespace
) -> dict[str, float]:
    """Return milliseconds per request: of the event loop's thread, and of all threads."""
    loop_ms, all_ms = served.cpu_ms()
    took_s = asyncio.run(ask(served.port, chunks, key, options.requests, options.streams))
    after_loop_ms, after_all_ms = served.cpu_ms()
    return {
        "loop_ms": round((after_loop_ms - loop_ms) / options.requests, 3),
        "all_ms": round((after_all_ms - all_ms) / options.requests, 3),
        "requests_per_s": round(options.requests / took_s, 1),
    }


def measure(options: argparse.Namespace, keyed: bool) -> list[dict[str, Any]]:
    """Measure each number of chunks, after some requests that warm the server up.

    Of several rounds the cheapest counts, because other load only adds to it.
    """
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        key = add_key(home / "keys.toml", "ann", _LIMITS) if keyed else None
        served = Served(home, keyed, options.profile)
        try:
            asyncio.run(ask(served.port, 9, key, 200, options.streams))
            for chunks in options.chunks:
                rounds = [one_round(served, chunks, key, options) for _ in range(options.rounds)]
                best = min(rounds, key=lambda row: row["all_ms"])
                rows.append({"keyed": keyed, "chunks": chunks, **best})
        finally:
            served.stop()
    first, last = rows[0], rows[-1]
    more = last["chunks"] - first["chunks"]
    for row in rows:
        row["ms_per_chunk"] = round((last["all_ms"] - first["all_ms"]) / max(1, more), 4)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, nargs="*", default=[1, 9, 33])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--streams", type=int, default=8, help="concurrent connections")
    parser.add_argument("--profile", help="file for cProfile's figures of the server")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--keyed", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve, options.keyed, Path(options.profile) if options.profile else None)
        return
    rows = [row for keyed in (False, True) for row in measure(options, keyed)]
    write_result("api_server_cost", rows)


if __name__ == "__main__":
    main()
