"""When does the first audio of a spoken answer come? A spoken question over HTTP, on the CPU.

`izwi serve` runs the embedded transcriber, chat model and voice. Questions never repeat and are
spoken by the embedded voice; answers are streamed. Times are from the request to the first text,
the first audio, and the first audible 5 ms.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.measure import AUDIBLE_BLOCK, audible_blocks, write_result
from izwi.audio.pcm import from_s16le
from tests.api.served import served

_SPEECH, _CHAT = "izwi-tiny-tts", "izwi-tiny-chat"
_RATE = 24_000
_VOICES = ("amber", "basil", "clara", "dorian", "edith", "felix", "hugo")
_TIMEOUT_S = 60.0


def draw_question(dice: random.Random) -> tuple[str, str]:
    """Return a question that never repeats, and its answer."""
    a, b = dice.randint(11, 99), dice.randint(2, 99)
    return f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}."


def ask(http: httpx.Client, question: str, voice: str) -> dict[str, Any]:
    """Ask a spoken question; return event times in ms after the request, and the answer's text."""
    spoken = {"model": _SPEECH, "voice": voice, "input": question, "response_format": "wav"}
    content = http.post("/v1/audio/speech", json=spoken).raise_for_status().content
    audio = {"data": base64.b64encode(content).decode(), "format": "wav"}
    body: dict[str, Any] = {
        "model": _CHAT,
        "modalities": ["text", "audio"],
        "audio": {"voice": voice, "format": "pcm16"},
        "messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": audio}]}],
        "stream": True,
    }
    text, pcm = "", b""
    times: dict[str, float] = {}
    begin = time.perf_counter()
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for part in _audio_parts(answer):
            now_ms = 1000 * (time.perf_counter() - begin)
            if "transcript" in part:
                text += part["transcript"]
                times.setdefault("first_text_ms", now_ms)
                times["last_text_ms"] = now_ms
            if "data" in part:
                times.setdefault("first_audio_ms", now_ms)
                pcm += base64.b64decode(part["data"])
                if "first_audible_ms" not in times:
                    loud = audible_blocks(from_s16le(pcm))
                    if len(loud):  # earlier audio is played from its first sample on
                        heard_ms = 1000 * int(loud[0]) * AUDIBLE_BLOCK / _RATE
                        audible_ms = max(now_ms, times["first_audio_ms"] + heard_ms)
                        times["first_audible_ms"] = audible_ms
    end_ms = 1000 * (time.perf_counter() - begin)
    question_s = (len(content) - 44) / 2 / _RATE
    return times | {
        "text": text,
        "end_ms": end_ms,
        "question_s": question_s,
        "answer_s": len(pcm) / 2 / _RATE,
    }


def _audio_parts(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                if "audio" in choice["delta"]:
                    yield choice["delta"]["audio"]


def main() -> None:
    """Ask the questions, and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--number", type=int, default=40)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    folder = Path("build/spoken_chat")
    folder.mkdir(parents=True, exist_ok=True)
    rows, right = [], 0
    with served(folder) as server, httpx.Client(base_url=server.url, timeout=_TIMEOUT_S) as http:
        for place in range(-options.warm_up, options.number):
            question, wanted = draw_question(dice)
            row = ask(http, question, dice.choice(_VOICES))
            if place >= 0:
                rows.append(row)
                right += row["text"] == wanted
        memory_mib = server.rss_mib()
    found = {}
    for name in ("first_text_ms", "last_text_ms", "first_audio_ms", "first_audible_ms", "end_ms"):
        values = [row[name] for row in rows if name in row]
        found[name] = {
            "median": round(float(np.median(values)), 1),
            "p95": round(float(np.percentile(values, 95)), 1),
        }
    early = sum(row["first_audio_ms"] < row["last_text_ms"] for row in rows)
    write_result(
        "spoken_chat",
        [{"what": name, **value} for name, value in found.items()],
        questions=options.number,
        right=round(right / options.number, 3),
        audio_before_the_text_was_complete=round(early / options.number, 3),
        question_s=round(float(np.mean([row["question_s"] for row in rows])), 2),
        answer_s=round(float(np.mean([row["answer_s"] for row in rows])), 2),
        server_rss_mib=round(memory_mib),
    )


if __name__ == "__main__":
    main()
