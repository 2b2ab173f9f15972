"""How does latency depend on the length of the input?

Texts, reference clips and audio files are generated anew for each request, so that no cache helps.
Each length is measured twice, one request at a time: "first" is the server's first request of that
length, "again" another one. Between the two, requests run concurrently:

* texts: short ones at a steady rate beside 16 long ones that start together;
* clips: clones at fixed rates, each clip of a different length;
* files: 1 s clips after the longest file.

Each row reports how many kernels were compiled or loaded and how many graphs were captured. Use an
empty TRITON_CACHE_DIR to measure the first requests on a new machine.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import random
import re
import time
from collections.abc import Sequence
from typing import Any

import aiohttp
import numpy as np
import soundfile
import torch

from benchmarks.asr.random_audio import random_audio
from benchmarks.measure import TEXTS, write_result
from benchmarks.random_checkpoint import EMBEDDED, EMBEDDED_LISTENER, NAMES
from benchmarks.serving.http_server import served
from benchmarks.serving.listeners import Listened, connect, figures, listen, listen_at, milliseconds
from benchmarks.serving.uploads import transcribe_all, upload_of
from benchmarks.simulation.arrivals import poisson_within
from izwi.audio.mel import WHISPER_RATE

TEXT_CHARS = (50, 200, 500, 1000, 1500, 2000, 3000, 4000)
CLIP_S = (1.3, 4.0, 5.7, 8.0, 12.0, 23.0)
FILE_S = (1.0, 2.0, 4.0, 8.0, 15.0, 29.0, 60.0, 180.0, 600.0)
RATES = (1.0, 10.0, 20.0)
_VOICE_RATE = 24_000
_SHORT_CHARS = 50
_LONG_CHARS = 3000
_NUM_LONG = 16
_SHORTS_PER_S = 10.0
_OUTLIER_CLIPS = 12
_WORDS = sorted({word for text in TEXTS for word in text.lower().rstrip(".").split()})


def random_text(chars: int, seed: int) -> str:
    """Return words in an order that no other seed gives."""
    rng, words, length = random.Random(seed), list[str](), 0
    while length < chars:
        words.append(rng.choice(_WORDS))
        length += len(words[-1]) + 1
    return " ".join(words)[: chars - 1].rstrip() + "."


def random_voice(seconds: float, seed: int) -> dict[str, str]:
    """Return `ref_audio` and `ref_text` of a clip."""
    file = io.BytesIO()
    samples = random_audio(seconds, _VOICE_RATE, seed)
    soundfile.write(file, samples, _VOICE_RATE, format="WAV", subtype="PCM_16")
    text = random_text(max(8, round(14 * seconds)), seed)
    return {"ref_audio": base64.b64encode(file.getvalue()).decode(), "ref_text": text}


class Asker:
    """A client of one server that never repeats a request.

    Args:
        url: URL of the server.
        client: The HTTP client.
        model: Name of the model.
        frames: Frames of each utterance.
    """

    def __init__(self, url: str, client: aiohttp.ClientSession, model: str, frames: int):
        self.url, self._client, self._model, self._frames = url, client, model, frames
        self._seed = 0
        self.rows: list[dict[str, Any]] = []

    def next_seed(self) -> int:
        """Return a number that was not returned before."""
        self._seed += 1
        return self._seed

    async def say(self, chars: int, clip_s: float | None = None) -> Listened:
        """Speak a new text, with a new clip as voice if its length is given."""
        seed = self.next_seed()
        clip = None if clip_s is None else random_voice(clip_s, seed)
        text = random_text(chars, seed)
        return await listen(
            self._client, self._model, seed, text=text, frames=self._frames, clip=clip
        )

    async def write_down(self, seconds: float) -> float:
        """Transcribe new audio; return milliseconds until the text is complete."""
        audio = random_audio(seconds, WHISPER_RATE, self.next_seed())
        taken_s, _ = await transcribe_all(self.url, [upload_of(self._model, audio)], 1)
        return milliseconds(taken_s, 50)

    async def delays(self) -> tuple[int, int]:
        """Return kernels compiled and graphs captured since the server was ready."""
        async with self._client.get("/metrics") as answer:
            text = await answer.text()

        def total(name: str) -> int:
            values = re.findall(rf"^\w*{name}\w*(?:{{[^}}]*}})? ([0-9.e+]+)$", text, re.MULTILINE)
            return round(sum(map(float, values)))

        return total("compilations"), total("graph_captures")

    async def add(self, what: str, before: tuple[int, int], began_s: float, **row: Any) -> None:
        """Keep a row, with the numbers compiled and captured since the last one."""
        await asyncio.sleep(0.15)  # the engine reports figures every 0.1 s
        after = await self.delays()
        reported = {"what": what, "at_s": round(began_s, 3), **row}
        reported |= {"compiled": after[0] - before[0], "captured": after[1] - before[1]}
        self.rows.append(reported)
        print("  ".join(f"{key} {value}" for key, value in reported.items()), flush=True)


async def measure_texts(asker: Asker, lengths: Sequence[int]) -> None:
    """Measure texts one at a time, then short ones beside long ones; twice."""
    for turn in ("first", "again"):
        for chars in lengths:
            before, began_s = await asker.delays(), time.time()
            heard = await asker.say(chars)
            row = {"chars": chars, "turn": turn, "ttfa_ms": milliseconds([heard.audible_s], 50)}
            await asker.add("text", before, began_s, **row, gap_ms=round(heard.gap_s * 1e3, 1))
        await _beside_long(asker, turn)


async def _beside_long(asker: Asker, turn: str) -> None:
    before, began_s = await asker.delays(), time.time()
    long = [asyncio.create_task(asker.say(_LONG_CHARS)) for _ in range(_NUM_LONG)]
    times_s = poisson_within(_SHORTS_PER_S, 4.0, seed=0)
    heard = await listen_at(times_s, lambda: asker.say(_SHORT_CHARS))
    slow = figures(await asyncio.gather(*long))
    row = figures(heard) | {f"long_{key}": slow[key] for key in ("ttfa_ms_p50", "underruns")}
    await asker.add("short beside 16 long", before, began_s, turn=turn, **row)


async def measure_clips(asker: Asker, lengths: Sequence[float], rates: Sequence[float]) -> None:
    """Measure clones one at a time, then with Poisson arrivals; finally all lengths again."""
    for turn in ("first", "again"):
        for clip_s in lengths:
            before, began_s = await asker.delays(), time.time()
            heard = await asker.say(_SHORT_CHARS, clip_s)
            row = {"clip_s": clip_s, "turn": turn, "ttfa_ms": milliseconds([heard.audible_s], 50)}
            await asker.add("clone", before, began_s, **row, gap_ms=round(heard.gap_s * 1e3, 1))
    for clip_s in (4.0, 12.0):
        for per_second in rates if clip_s < 5 else rates[:2]:
            await _clones_at(asker, clip_s, per_second)


async def _clones_at(asker: Asker, clip_s: float, per_second: float) -> None:
    before, began_s = await asker.delays(), time.time()
    rng = random.Random(1)
    times_s = poisson_within(per_second, max(5.0, 6 / per_second), seed=0)
    heard = await listen_at(
        times_s, lambda: asker.say(_SHORT_CHARS, clip_s * rng.uniform(0.9, 1.1))
    )
    row = figures(heard)
    await asker.add("clones", before, began_s, clip_s=clip_s, per_second=per_second, **row)


async def measure_files(asker: Asker, lengths: Sequence[float]) -> None:
    """Measure files one at a time, then short ones after the longest."""
    for turn in ("first", "again"):
        for seconds in lengths:
            before, began_s = await asker.delays(), time.time()
            took_ms = await asker.write_down(seconds)
            await asker.add("file", before, began_s, seconds=seconds, turn=turn, ms=took_ms)
        before, began_s = await asker.delays(), time.time()
        taken = [await asker.write_down(1.0) for _ in range(_OUTLIER_CLIPS)]
        row = {"turn": turn, "ms_most": max(taken), "ms_p50": float(np.median(taken))}
        await asker.add("1 s after the longest", before, began_s, **row)


async def measure(url: str, kind: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all rows of one kind."""
    async with connect(url, 256) as client:
        asker = Asker(url, client, options.size, options.frames)
        if kind == "texts":
            await measure_texts(asker, options.chars)
        elif kind == "clips":
            await measure_clips(asker, options.clip_s, options.rates)
        else:
            await measure_files(asker, options.file_s)
    return asker.rows


_SIZES = {
    "texts": ("tts-1.7b", EMBEDDED),
    "clips": ("tts-1.7b-base", EMBEDDED),
    "files": ("asr-1.7b", EMBEDDED_LISTENER),
}


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=_SIZES)
    parser.add_argument(
        "--size", choices=NAMES, help="size of the model; default: one for the kind"
    )
    parser.add_argument("--frames", type=int, default=52, help="frames of an utterance")
    parser.add_argument("--chars", type=int, nargs="+", default=TEXT_CHARS)
    parser.add_argument("--clip-s", type=float, nargs="+", default=CLIP_S)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--file-s", type=float, nargs="+", default=FILE_S)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument(
        "--api-servers", type=int, default=1, help="API-server processes; 0: one in all"
    )
    parser.add_argument("--warm", action="store_true", help="store as the result of a second start")
    options = parser.parse_args()
    options.size = options.size or _SIZES[options.kind][0 if on_gpu else 1]
    began = time.perf_counter()
    with served(
        *(options.size, options.frames, 64, options.port, options.device),
        api_servers=options.api_servers,
    ) as url:
        start_s = round(time.perf_counter() - began, 1)
        print(f"{options.size} is ready after {start_s} s", flush=True)
        rows = [{"what": "ready", "start_s": start_s}]
        rows += asyncio.run(measure(url, options.kind, options))
    usual = options.size == _SIZES[options.kind][0]
    name = f"by_length_{options.kind}" + ("" if usual else f"_{options.size}")
    name += "_warm" if options.warm else ""
    write_result(name, rows, size=options.size, api_servers=options.api_servers)


if __name__ == "__main__":
    main()
