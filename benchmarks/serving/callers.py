"""How much do the transcriptions of one key slow down the requests of another?

    python -m benchmarks.serving.callers --before /path/of/an/older/checkout

One server with the embedded voice, transcriber and chat model, for two keys. A busy caller keeps a
number of transcriptions of long clips in flight. Beside them the other key sends one request after
the other: a transcription of a second, or a chat of a few words. The clips are speech of the
embedded voice, put together from sentences in an order that never repeats.

With `--before`, a server of another version is measured in turns with this one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import numpy as np

from benchmarks.measure import write_result
from benchmarks.serving.fairness_texts import Texts
from benchmarks.serving.http_server import wait_ready
from benchmarks.serving.uploads import upload_of
from izwi.arrays import Float32
from izwi.audio.decode import decode_audio
from izwi.audio.mel import WHISPER_RATE
from izwi_api.usage.keys import add_key
from izwi_api.usage.limits import KeyLimits

VOICE, TRANSCRIBER, CHAT = "izwi-tiny-tts", "izwi-tiny-asr", "izwi-tiny-chat"
_BUSY, _OTHER = "busy", "other"
_SENTENCES = 24
_START_S, _STOP_S = 240.0, 30.0
_CHAT_TOKENS = 12
# A server under this much load answers late, not never.
_TIMEOUT = aiohttp.ClientTimeout(total=600)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server and the keys of its two callers."""

    url: str
    keys: dict[str, str]

    def client(self, key: str) -> aiohttp.ClientSession:
        """Return a client of one caller, with any number of connections."""
        head = {"Authorization": f"Bearer {self.keys[key]}"}
        connector = aiohttp.TCPConnector(limit=0)
        return aiohttp.ClientSession(self.url, connector=connector, timeout=_TIMEOUT, headers=head)


@contextmanager
def serving(checkout: Path, options: list[str]) -> Iterator[Server]:
    """Run a server of a checkout until the block ends. Raises RuntimeError if it does not start."""
    with tempfile.TemporaryDirectory() as home, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        file = Path(home) / "keys.toml"
        keys = {name: add_key(file, name, KeyLimits()) for name in (_BUSY, _OTHER)}
        paths = [
            str(checkout),
            str(checkout / "api"),
            str(checkout / "models"),
            str(checkout / "web"),
        ]
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "IZWI_HOME": home}
        served = [part for name in (VOICE, TRANSCRIBER, CHAT) for part in ("--model", name)]
        command = [sys.executable, "-c", "from izwi_api.cli.run import main; main()", "serve"]
        command += [*served, "--port", str(port), "--api-keys", str(file)]
        process = subprocess.Popen([*command, *options], env=environ, cwd=checkout)
        try:
            wait_ready(process, url := f"http://127.0.0.1:{port}", _START_S)
            yield Server(url, keys)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


async def speak(client: aiohttp.ClientSession, texts: Texts) -> list[Float32]:
    """Return sentences of the embedded voice, each (samples,) at WHISPER_RATE."""
    said: list[Float32] = []
    for _ in range(_SENTENCES):
        body = {"model": VOICE, "input": texts.sentence(), "voice": "amber"}
        async with client.post("/v1/audio/speech", json=body) as answer:
            answer.raise_for_status()
            said.append(decode_audio(await answer.read(), WHISPER_RATE))
    return said


@dataclass(slots=True)
class Clips:
    """Clips of any length from the same sentences; no two are alike."""

    said: list[Float32]
    rng: random.Random

    def upload(self, seconds: float) -> httpx.Request:
        """Return a request to transcribe a new clip."""
        size, parts = round(seconds * WHISPER_RATE), list[Float32]()
        while sum(map(len, parts)) < size + WHISPER_RATE:
            parts.append(self.rng.choice(self.said))
        start = self.rng.randrange(WHISPER_RATE)
        return upload_of(TRANSCRIBER, np.concatenate(parts)[start : start + size])


async def _post(client: aiohttp.ClientSession, upload: httpx.Request) -> bool:
    """Transcribe a clip; return False if the server refused it, because too many wait."""
    headers = {"Content-Type": upload.headers["Content-Type"]}
    path = upload.url.path
    async with client.post(path, data=upload.content, headers=headers) as answer:
        if answer.status != 503:
            answer.raise_for_status()
        await answer.read()
    return answer.status != 503


async def _chat(client: aiohttp.ClientSession, texts: Texts) -> bool:
    body = {"model": CHAT, "max_tokens": _CHAT_TOKENS, "temperature": 0}
    body["messages"] = [{"role": "user", "content": texts.sentence()}]
    async with client.post("/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        await answer.read()
    return True


async def measure_beside(
    server: Server, clips: Clips, options: argparse.Namespace, kind: str, busy: int
) -> tuple[list[float], int]:
    """Time requests of one key beside transcriptions of the other.

    Returns:
        Seconds that each request took, ascending, and how many of them were refused after that.
    """
    texts = Texts(clips.rng)
    num_done, num_refused, taken_s = 0, 0, list[float]()

    async def keep_busy(client: aiohttp.ClientSession) -> None:
        nonlocal num_done
        while True:
            if await _post(client, clips.upload(options.busy_s)):
                num_done += 1
            else:
                await asyncio.sleep(1.0)

    async with server.client(_BUSY) as heavy, server.client(_OTHER) as light:
        work: Callable[[], Coroutine[Any, Any, bool]]
        if kind == "transcription":

            def work() -> Coroutine[Any, Any, bool]:
                return _post(light, clips.upload(1.0))
        else:

            def work() -> Coroutine[Any, Any, bool]:
                return _chat(light, texts)

        tasks = [asyncio.create_task(keep_busy(heavy)) for _ in range(busy)]
        try:
            await asyncio.sleep(options.settle_s if busy else 0.0)
            for _ in range(options.requests):
                began_s = time.perf_counter()
                num_refused += not await work()
                taken_s.append(time.perf_counter() - began_s)
                await asyncio.sleep(options.pause_s)
        finally:
            failed = [task.exception() for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if failed and failed[0] is not None:
            raise failed[0]
    print(f"    {num_done} long clips were transcribed", flush=True)
    return sorted(taken_s), num_refused


async def measure(server: Server, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure each kind of request alone and beside transcriptions of another key."""
    async with server.client(_OTHER) as client:
        said = await speak(client, Texts(random.Random(1)))
    clips = Clips(said, random.Random(2))
    warm = argparse.Namespace(**vars(options) | {"requests": 3})
    rows: list[dict[str, Any]] = []
    for kind, busy in (("transcription", options.transcriptions), ("chat", options.beside_chat)):
        await measure_beside(server, clips, warm, kind, 0)
        alone_s, _ = await measure_beside(server, clips, options, kind, 0)
        for number in (0, busy):
            taken_s, num_refused = alone_s, 0
            if number:
                taken_s, num_refused = await measure_beside(server, clips, options, kind, number)
            row = {"request": kind, "beside": number, "ms_p50": _ms(statistics.median(taken_s))}
            row["ms_p95"] = _ms(taken_s[round(0.95 * (len(taken_s) - 1))])
            slower = statistics.median(taken_s) / statistics.median(alone_s)
            row |= {"times_slower_p50": round(slower, 2), "refused": num_refused}
            rows.append(row)
            print("   ", row, flush=True)
            await asyncio.sleep(options.rest_s if number else 0.0)
    return rows


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="checkout of an older version")
    parser.add_argument("--transcriptions", type=int, default=24, help="beside a transcription")
    parser.add_argument("--beside-chat", type=int, default=80, help="beside a chat")
    parser.add_argument("--busy-s", type=float, default=60.0, help="seconds of a long clip")
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--pause-s", type=float, default=0.2, help="between short requests")
    parser.add_argument("--settle-s", type=float, default=4.0, help="before the short requests")
    parser.add_argument("--rest-s", type=float, default=5.0, help="after the long clips")
    parser.add_argument("--rounds", type=int, default=1)
    options, serve_options = parser.parse_known_args()
    here = Path(__file__).parents[2]
    versions = {"before": options.before, "now": here} if options.before else {"now": here}
    rows: list[dict[str, Any]] = []
    for turn in range(options.rounds):
        for version, checkout in versions.items():
            print(f"{version}, turn {turn + 1}", flush=True)
            with serving(checkout, serve_options) as server:
                measured = asyncio.run(measure(server, options))
            rows += [{"version": version, "turn": turn + 1} | row for row in measured]
    write_result("callers", rows, device_kind="cpu", busy_s=options.busy_s)


if __name__ == "__main__":
    main()
