"""How fast does a live session answer, and how fast does it stop when interrupted?

    python -m benchmarks.live.answers --size embedded --sessions 1 2
    python -m benchmarks.live.answers --size 1.7b --device cuda --sessions 1 16 50

The server runs in its own process (`benchmarks.live.server`), or is given by `--url`. Clients send
audio in real time and never repeat an utterance. For each turn, in milliseconds since the last
audible sample of the user was sent:

    endpointing   input_audio_buffer.speech_stopped
    transcript    + until the transcript was complete: what was left of it
    token         + until the first words of the answer
    frame         + until its first audio
    lead_in       + until that audio is audible: quiet samples before it
    network       round trip of an event, measured on the idle session; included in all of the above

Their sum is the audible latency, from the user's last sample to the first one of the answer that
can be heard. `--listens 20` also listens to 20 whole answers, each in a session of its own on the
idle server, with voice after voice. It counts the gaps that a client hears which plays what
arrives at once: their number, and their milliseconds.

For each interruption: time from its first audible sample to the last audio sent, and to the end of
the response. Clients that do not flush their buffer play up to 250 ms longer.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.live.models import CHAT, SIZES
from benchmarks.measure import AUDIBLE_BLOCK, audible_blocks, first_audible, write_result
from benchmarks.serving.http_server import running
from izwi.arrays import Float32
from izwi.audio.pcm import from_s16le, to_s16le
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.speech import SpeechInput
from izwi.scheduler.playback import find_gaps

RATE = 24_000
_BLOCK_S = 0.02
_START_S = 400.0
_EVENT_S = 60.0
_AUDIBLE_GAP_S = 0.002  # shorter gaps are those of this client's own clock
_QUESTIONS = (
    "When does the {} leave?",
    "Where is the {}?",
    "How far is it to the {}?",
    "What is behind the {}?",
)
_THINGS = ("train", "river", "house", "garden", "market", "school", "bus", "boat", "bridge")
_INTERRUPTION = "No, wait. I would like to know about the {}."
_VOICES = ("felix", "clara", "greta", "amber", "hugo")
# Of an answer that is listened to; the others are times, reported by their medians.
_COUNTED = ("gaps", "gap", "total")


def voices(count: int, interruptions: int) -> tuple[list[Float32], list[Float32]]:
    """Speak different questions and interruptions with the embedded voice, at 24 kHz."""
    backend = torch_backend("cpu", "float32")
    registry = Registry(backend)
    name = registry.load("izwi-tiny-tts")
    model = registry.speech(name)
    engine = Engine(registry.models, backend, EngineConfig(kv_bytes=1 << 26))
    speakers = [voice for voice in _VOICES if voice in model.speakers] or model.speakers[:1]

    def say(text: str, seed: int) -> Float32:
        ask = SpeechInput(text, speakers[seed % len(speakers)], seed=seed)
        engine.submit(model.prepare_speech(f"{text}-{seed}", name, ask))
        parts = []
        while engine.has_work:
            parts += [chunk.pcm for chunk in engine.step() if chunk.pcm is not None]
        audio = np.concatenate(parts)
        audible = audible_blocks(audio)
        return audio[audible[0] * AUDIBLE_BLOCK : (audible[-1] + 1) * AUDIBLE_BLOCK]

    chance = random.Random(1)

    def texts(patterns: tuple[str, ...], number: int) -> list[Float32]:
        return [
            say(chance.choice(patterns).format(chance.choice(_THINGS)), seed)
            for seed in range(number)
        ]

    return texts(_QUESTIONS, count), texts((_INTERRUPTION,), interruptions)


class Client:
    """One session: a microphone that never stops, and a log of events with their times."""

    def __init__(self, socket: ClientConnection, seed: int):
        self._socket = socket
        self._queue: list[Float32] = []
        self._last_audible_s = self._first_audible_s = 0.0
        self._log: list[tuple[float, dict[str, Any]]] = []
        self._news = asyncio.Event()
        self._noise = np.random.default_rng(seed)
        self._tasks = [asyncio.create_task(self._talk()), asyncio.create_task(self._listen())]

    async def close(self) -> None:
        """Close the session."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _talk(self) -> None:
        """Send audio at the pace of a microphone, with faint noise when there is no speech."""
        size, due_s = int(RATE * _BLOCK_S), time.perf_counter()
        while True:
            block = (self._noise.normal(size=size) * 1e-4).astype(np.float32)
            if self._queue:
                said = self._queue[0][:size]
                self._queue[0] = self._queue[0][size:]
                block[: len(said)] += said
                if not len(self._queue[0]):
                    self._queue.pop(0)
            audio = base64.b64encode(to_s16le(block)).decode()
            await self.send_event("input_audio_buffer.append", audio=audio)
            if len(audible_blocks(block)):
                self._last_audible_s = time.perf_counter()
                self._first_audible_s = self._first_audible_s or self._last_audible_s
            due_s += _BLOCK_S
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))

    async def _listen(self) -> None:
        async for message in self._socket:
            self._log.append((time.perf_counter(), json.loads(message)))
            self._news.set()

    async def send_event(self, kind: str, **fields: Any) -> None:
        """Send an event."""
        await self._socket.send(json.dumps({"type": kind, **fields}))

    def say(self, audio: Float32) -> None:
        """Queue audio to be sent."""
        self._first_audible_s = 0.0
        self._queue.append(audio)

    async def until(self, kind: str, matches: Callable[[dict[str, Any]], bool] = bool) -> float:
        """Wait for an event since the last `forget`; return its time. Raises TimeoutError."""
        seen = 0
        async with asyncio.timeout(_EVENT_S):
            while True:
                for at_s, event in self._log[seen:]:
                    if event["type"] == "error":
                        raise RuntimeError(event["error"]["message"])
                    if event["type"] == kind and matches(event):
                        return at_s
                seen = len(self._log)
                self._news.clear()
                await self._news.wait()

    def forget(self) -> None:
        """Begin a new turn."""
        self._log.clear()

    def received(self) -> Iterator[tuple[float, Float32]]:
        """Return the audio received since `forget`."""
        for at_s, event in self._log:
            if event["type"] == "response.output_audio.delta":
                yield at_s, from_s16le(base64.b64decode(event["delta"]))

    async def round_trip_ms(self) -> float:
        """Return the round-trip time of an event."""
        times = []
        for _ in range(5):
            self.forget()
            began_s = time.perf_counter()
            await self.send_event("session.update", session={"type": "realtime"})
            times.append(await self.until("session.updated") - began_s)
            await asyncio.sleep(0.05)
        return 1e3 * float(np.median(times))

    async def turn(self, question: Float32) -> dict[str, float]:
        """Ask a question, and time the answer by phase."""
        self.forget()
        self.say(question)
        stopped_s = await self.until("input_audio_buffer.speech_stopped")
        ended_s = self._last_audible_s
        heard_s = await self.until("conversation.item.input_audio_transcription.completed")
        token_s = await self.until("response.output_audio_transcript.delta")
        frame_s = await self.until("response.output_audio.delta")
        await self.until(
            "response.output_audio.delta", lambda _: first_audible(self.audio()) is not None
        )
        quiet = first_audible(self.audio()) or 0
        marks = [ended_s, stopped_s, max(stopped_s, heard_s)]
        marks.append(max(marks[-1], token_s))
        marks.append(max(marks[-1], frame_s))
        names = ("endpointing", "transcript", "token", "frame")
        row = {
            name: 1e3 * (after - before)
            for name, before, after in zip(names, marks[:-1], marks[1:], strict=True)
        }
        row["lead_in"] = 1e3 * quiet / RATE
        return row | {"total": sum(row.values())}

    async def listen(self, question: Float32) -> dict[str, float]:
        """Ask a question, time its answer by phase, and listen to all of it."""
        row = await self.turn(question)
        await self.until("response.done")
        gaps = find_gaps([(at_s, len(audio) / RATE) for at_s, audio in self.received()])
        lengths_ms = [1e3 * gap.length_s for gap in gaps if gap.length_s >= _AUDIBLE_GAP_S]
        row |= {"gaps": len(lengths_ms), "gap": sum(lengths_ms)}
        return row | {"audio": 1e3 * len(self.audio()) / RATE}

    def audio(self) -> Float32:
        """Return all audio since `forget`."""
        parts = [audio for _, audio in self.received()]
        return np.concatenate([*parts, np.zeros(0, np.float32)])

    async def settle(self) -> None:
        """Wait for the answer to the interruption to begin, and cancel it."""
        await self.until("response.created")
        await self.send_event("response.cancel")
        await self.until("response.done")
        await asyncio.sleep(0.5)

    async def interrupt(self, audio: Float32) -> dict[str, float]:
        """Speak over the current answer, and time its end."""
        self.say(audio)
        done_s = await self.until("response.done")
        began_s = self._first_audible_s
        last_s = max((at_s for at_s, _ in self.received()), default=began_s)
        self.forget()
        return {"last_audio": 1e3 * max(0.0, last_s - began_s), "done": 1e3 * (done_s - began_s)}


@asynccontextmanager
async def session(
    url: str, model: str, seed: int, turns: dict[str, Any], voice: str | None = None
) -> AsyncIterator[Client]:
    """Open a session."""
    address = f"{url.replace('http', 'ws', 1)}/v1/realtime?model={model}"
    async with connect(address, max_size=None, compression=None) as socket:
        client = Client(socket, seed)
        audio: dict[str, Any] = {
            "input": {"turn_detection": turns, "transcription": {"model": "whisper-1"}}
        }
        if voice is not None:
            audio["output"] = {"voice": voice}
        update = {"type": "realtime", "audio": audio, "max_output_tokens": 60}
        update["instructions"] = "Answer briefly."
        await client.send_event("session.update", session=update)
        await client.until("session.updated")
        yield client
        await client.close()


async def run_level(
    options: argparse.Namespace, url: str, count: int, said: tuple[list[Float32], list[Float32]]
) -> dict[str, Any]:
    """Run a number of sessions at once, each with some turns and one interruption per turn."""
    questions, interruptions = said
    turns: list[dict[str, float]] = []
    stops: list[dict[str, float]] = []
    trips: list[float] = []

    async def one(number: int) -> None:
        await asyncio.sleep(0.37 * number % 3.0)
        detection = {"type": options.turns}
        async with session(url, options.model, number, detection) as client:
            trips.append(await client.round_trip_ms())
            for turn in range(options.rounds):
                place = number * options.rounds + turn
                turns.append(await client.turn(questions[place % len(questions)]))
                await asyncio.sleep(0.4)
                stops.append(await client.interrupt(interruptions[place % len(interruptions)]))
                await client.settle()

    await asyncio.gather(*map(one, range(count)))
    row: dict[str, Any] = {"sessions": count, "turns": len(turns)}
    for name in turns[0]:
        row[f"{name}_ms"] = _middle(turns, name)
    beyond = [turn["total"] - turn["endpointing"] for turn in turns]
    row["beyond_endpointing_ms"] = round(float(np.median(beyond)), 1)
    row["beyond_endpointing_p95_ms"] = round(float(np.percentile(beyond, 95)), 1)
    row["network_ms"] = round(float(np.median(trips)), 2)
    for name in stops[0]:
        row[f"interrupted_{name}_ms"] = _middle(stops, name)
    return row


async def listen_alone(
    options: argparse.Namespace, url: str, questions: list[Float32]
) -> dict[str, Any]:
    """Listen to whole answers on the idle server, each in a session of its own."""
    answers = []
    for number in range(options.listens):
        voice = _VOICES[number % len(_VOICES)] if options.size == "embedded" else None
        detection = {"type": options.turns}
        async with session(url, options.model, number, detection, voice) as client:
            await asyncio.sleep(1.0)
            answers.append(await client.listen(questions[number % len(questions)]))
            await asyncio.sleep(0.5)
    totals = [answer["total"] for answer in answers]
    return {
        "listens": len(answers),
        "audible_ms": _middle(answers, "total"),
        "audible_p95_ms": round(float(np.percentile(totals, 95)), 1),
        **{f"{name}_ms": _middle(answers, name) for name in answers[0] if name not in _COUNTED},
        "answers_with_gaps": sum(answer["gaps"] > 0 for answer in answers),
        "gaps": int(sum(answer["gaps"] for answer in answers)),
        "gaps_ms": round(sum(answer["gap"] for answer in answers), 1),
    }


def _middle(rows: list[dict[str, float]], name: str) -> float:
    return round(float(np.median([row[name] for row in rows])), 1)


@contextmanager
def served(options: argparse.Namespace) -> Iterator[str]:
    """Run the server in its own process, unless a URL is given."""
    if options.url:
        yield options.url
        return
    command = [sys.executable, "-m", "benchmarks.live.server", "--size", options.size]
    command += ["--device", options.device, "--port", str(options.port)]
    command += ["--streams", str(4 * max([*options.sessions, 1]))]
    command += ["--api-servers", str(options.api_servers)]
    if options.chat:
        command += ["--chat", options.chat]
    url = f"http://127.0.0.1:{options.port}"
    with running(command, url, _START_S):
        yield url


def main() -> None:
    """Measure each level, after a turn that warms the server up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="embedded")
    parser.add_argument("--chat", help="folder or name of a chat model, with --size embedded")
    parser.add_argument("--url", help="address of a running server")
    parser.add_argument("--model", default=CHAT, help="the chat model at --url")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--port", type=int, default=8190)
    parser.add_argument("--api-servers", type=int, default=1, help="API-server processes")
    parser.add_argument("--sessions", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each session")
    parser.add_argument("--listens", type=int, default=0, help="whole answers to listen to")
    parser.add_argument("--turns", choices=["server_vad", "semantic_vad"], default="server_vad")
    options = parser.parse_args()
    most = max([*options.sessions, 1]) * options.rounds
    most = max(most, options.listens)
    said = voices(min(most, 40), min(most, 10))
    rows: list[dict[str, Any]] = []
    fixed = {name: getattr(options, name) for name in ("size", "turns", "api_servers")}
    with served(options) as url:
        warm = argparse.Namespace(**{**vars(options), "rounds": 2})
        asyncio.run(run_level(warm, url, 1, said))
        if options.listens:
            rows.append(asyncio.run(listen_alone(options, url, said[0])))
            write_result(f"live_{options.size}", rows, **fixed)
        for count in options.sessions:
            rows.append(asyncio.run(run_level(options, url, count, said)))
            write_result(f"live_{options.size}", rows, **fixed)  # a later level may fail


if __name__ == "__main__":
    main()
