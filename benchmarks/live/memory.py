"""Does the memory of a live server level off? Hundreds of exchanges, one after the other.

    python -m benchmarks.live_memory --exchanges 400
    python -m benchmarks.live_memory --exchanges 400 --kv-mib 128 --host-mib 64

`izwi serve` runs in its processes with the embedded models. Sessions follow each other. In each,
half of the questions are spoken and half are typed, and each seventh answer is interrupted.
No question is heard twice with the same noise. The client sends audio as fast as the server takes
it, takes answers as fast as they are made, and reports each as played: the engine's work is that of
a conversation in real time, without the waits.

Each row has the resident and the anonymous memory of the engine's process and of the API server's,
and what the engine counts of its own: pages that hold keys and values, on the device and in host
memory. What grows with neither is a leak.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.live.answers import RATE, voices
from benchmarks.measure import write_result
from benchmarks.serving.http_server import running
from izwi.arrays import Float32
from izwi.audio.pcm import to_s16le

_MIB = 1 << 20
_EVENT_S = 120.0
_SILENCE_S = 0.8  # ends a turn of server_vad
_NOISE = 1e-4
_TYPED = (
    "What is {} times {}?",
    "What is {} plus {}?",
    "Is {} more than {}?",
    "How far is it from {} to {}?",
)
_TYPED_EVERY, _INTERRUPTED_EVERY = 2, 7
# Without a system message the embedded model's template has the time of day, so that the same
# question would be another prompt in the next minute.
INSTRUCTIONS = "It is 12:00 on Friday, 27 November 2026."
_PROCESSES = {"engine": "engine_process", "api": "api_server_process"}


class Talker:
    """One session. Sends as fast as it may."""

    def __init__(self, socket: ClientConnection, seed: int):
        self._socket = socket
        self._noise = np.random.default_rng(seed)
        self._chance = random.Random(seed)

    async def send_event(self, kind: str, **fields: Any) -> None:
        """Send an event."""
        await self._socket.send(json.dumps({"type": kind, **fields}))

    def abort(self) -> None:
        """Vanish: close the connection without a word."""
        self._socket.transport.abort()

    async def until(self, *kinds: str) -> list[dict[str, Any]]:
        """Return the events up to one of a kind. Raises RuntimeError for an `error`."""
        events: list[dict[str, Any]] = []
        async with asyncio.timeout(_EVENT_S):
            while not events or events[-1]["type"] not in kinds:
                events.append(json.loads(await self._socket.recv()))
                if events[-1]["type"] == "error":
                    raise RuntimeError(events[-1]["error"]["message"])
        return events

    async def say(self, speech: Float32) -> None:
        """Send speech, and the silence that ends the turn."""
        silence = np.zeros(int(_SILENCE_S * RATE), np.float32)
        audio = np.concatenate([silence, speech, silence])
        audio = (audio + _NOISE * self._noise.normal(size=len(audio))).astype(np.float32)
        for start in range(0, len(audio), RATE // 10):
            piece = to_s16le(audio[start : start + RATE // 10])
            await self.send_event(
                "input_audio_buffer.append", audio=base64.b64encode(piece).decode()
            )

    async def type(self) -> None:
        """Send a question as text."""
        text = self._chance.choice(_TYPED)
        text = text.format(self._chance.randint(2, 99), self._chance.randint(2, 99))
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        await self.send_event("conversation.item.create", item=item)
        await self.send_event("response.create")

    async def exchange(self, question: Float32 | None, *, interrupts: bool) -> float:
        """Ask a question, typed if None; return the seconds of audio of its answer."""
        return _seconds(await self.answer(question, interrupts=interrupts))

    async def answer(
        self, question: Float32 | None, *, interrupts: bool = False
    ) -> list[dict[str, Any]]:
        """Ask a question, typed if None; return the events until its answer is done and played."""
        await (self.type() if question is None else self.say(question))
        events = await self.until("response.output_audio.delta", "response.done")
        if interrupts and events[-1]["type"] != "response.done":
            await self.send_event("response.cancel")
        if events[-1]["type"] != "response.done":
            events += await self.until("response.done")
        audio = [e for e in events if e["type"] == "response.output_audio.delta"]
        if audio and not interrupts:  # all of it was played
            await self.send_event(
                "conversation.item.truncate",
                item_id=audio[0]["item_id"],
                content_index=0,
                audio_end_ms=int(1000 * _seconds(events)),
            )
            await self.until("conversation.item.truncated")
        return events


def _seconds(events: list[dict[str, Any]]) -> float:
    audio = [e for e in events if e["type"] == "response.output_audio.delta"]
    return sum(len(e["delta"]) * 3 // 4 for e in audio) / 2 / RATE


@asynccontextmanager
async def session(url: str, seed: int, key: str = "") -> AsyncIterator[Talker]:
    """Open a session that is not paced, with a key if the server needs one.

    The seed decides what is typed, the noise under what is said, and what is drawn for answers.
    """
    address = f"{url.replace('http', 'ws', 1)}/v1/realtime?model=izwi-tiny-chat"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with connect(
        address, max_size=None, compression=None, additional_headers=headers
    ) as socket:
        talker = Talker(socket, seed)
        audio = {
            "input": {
                "turn_detection": {"type": "server_vad"},
                "transcription": {"model": "whisper-1"},
            },
            "output": {"lead_ms": 0},
        }
        settings = {
            "type": "realtime",
            "audio": audio,
            "seed": seed,
            "instructions": INSTRUCTIONS,
        }
        await talker.send_event("session.update", session=settings)
        await talker.until("session.updated")
        yield talker


def memory_of(pid: int) -> dict[str, float]:
    """Return the resident and the anonymous memory of a process, in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return {"rss": round(kib["Rss"] / 1024, 1), "anonymous": round(kib["Anonymous"] / 1024, 1)}


def processes(supervisor: int) -> dict[str, int]:
    """Return the ids of the server's processes by what they are."""
    found = {}
    for pid in _children(supervisor):
        command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
        found |= {name: pid for name, module in _PROCESSES.items() if module in command}
    return found


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [child for each in map(int, listed) for child in (each, *_children(each))]


def counted(url: str) -> dict[str, float]:
    """Return what the engine counts of its memory, in MiB."""
    figures: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text):
        for sample in family.samples:
            name = sample.name.removeprefix("izwi_engine_")
            figures.setdefault(name, {})[sample.labels.get("model", "")] = sample.value
    page = figures["page_bytes"]
    used = {model: figures["pages"][model] - figures["free_pages"][model] for model in page}
    hosted = figures.get("host_pages", {})
    return {
        "pages": round(sum(used[model] * page[model] for model in page) / _MIB, 1),
        "host_pages": round(sum(hosted.get(m, 0.0) * page[m] for m in page) / _MIB, 1),
    }


def row_of(url: str, pids: dict[str, int], exchanges: int, audio_s: float) -> dict[str, Any]:
    """Return the memory after a number of exchanges."""
    row: dict[str, Any] = {"exchanges": exchanges, "audio_s": round(audio_s, 1)}
    for name, pid in pids.items():
        row |= {f"{name}_{kind}_mib": value for kind, value in memory_of(pid).items()}
    return row | {f"engine_{kind}_mib": value for kind, value in counted(url).items()}


async def converse(options: argparse.Namespace, url: str, pids: dict[str, int]) -> list[Any]:
    """Hold all exchanges, in sessions of some; return a row for each few of them."""
    questions, _ = voices(options.questions, 0)
    rows, audio_s, done = [row_of(url, pids, 0, 0.0)], 0.0, 0
    while done < options.exchanges:
        async with session(url, done) as talker:
            for _ in range(min(options.session, options.exchanges - done)):
                is_typed = done % _TYPED_EVERY == 1
                question = None if is_typed else questions[done % len(questions)]
                interrupts = done % _INTERRUPTED_EVERY == 5
                audio_s += await talker.exchange(question, interrupts=interrupts)
                done += 1
                if done % options.every == 0:
                    rows.append(row_of(url, pids, done, audio_s))
                    print(rows[-1], flush=True)
    await asyncio.sleep(3.0)  # an idle engine returns what is free
    return [*rows, row_of(url, pids, done, audio_s)]


@contextmanager
def served(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Run the server; yield its address, and the id of its first process."""
    command = [sys.executable, "-c", "from izwi_api.cli.run import main; main()", "serve"]
    command += ["--port", str(options.port), "--host-mib", str(options.host_mib)]
    command += ["--kv-mib", str(options.kv_mib)]
    with tempfile.TemporaryDirectory() as home:
        url = f"http://127.0.0.1:{options.port}"
        with running(["env", f"IZWI_HOME={home}", *command], url) as process:
            yield url, process.pid


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--exchanges", type=int, default=400)
    parser.add_argument("--session", type=int, default=40, help="exchanges of a session")
    parser.add_argument("--every", type=int, default=10, help="exchanges between two rows")
    parser.add_argument("--questions", type=int, default=40, help="different spoken questions")
    parser.add_argument("--kv-mib", type=int, default=0, help="as of `izwi serve`")
    parser.add_argument("--host-mib", type=int, default=256, help="as of `izwi serve`")
    parser.add_argument("--port", type=int, default=8191)
    options = parser.parse_args()
    with served(options) as (url, supervisor):
        rows = asyncio.run(converse(options, url, processes(supervisor)))
    fixed = {name: getattr(options, name) for name in ("session", "kv_mib", "host_mib")}
    write_result("live_memory", rows, **fixed)


if __name__ == "__main__":
    main()
