"""Run speech-to-speech sessions on one engine, and time their audio."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from izwi.engine.engine import Engine
from izwi.inputs.chat import Role
from izwi.inputs.conversation import AudioContent, ConversationInput, SpokenTurn
from izwi.request.request import Chunk, Request

QUERY_S = 4.0
_RATE_HZ = 16_000
_LATE_S = 1e-3  # a longer delay counts as a gap
Row = dict[str, Any]


def questions(model: Any, name: str, entries: int) -> Iterator[Request]:
    """Return spoken questions of random audio, which never repeat."""
    chance = np.random.default_rng(zlib.crc32(name.encode()))
    number = 0
    while True:
        samples = 0.1 * chance.standard_normal(int(QUERY_S * _RATE_HZ), dtype=np.float32)
        turns = (SpokenTurn(Role.USER, (AudioContent(samples),)),)
        ask = ConversationInput(turns, seed=number, max_new_tokens=entries)
        yield model.prepare_conversation(f"{name}-{number}", "s2s", ask)
        number += 1


def first_audio_row(engine: Engine, model: Any, repeats: int) -> Row:
    """Time questions until their first audio, one at a time; preparation is reported separately."""
    prepared_ms, first_ms, first_text_ms = [], [], []
    asked = questions(model, f"alone{repeats}", entries=30)
    for _ in range(repeats):
        began = time.perf_counter()
        request = next(asked)
        ready = time.perf_counter()
        engine.submit(request)
        text_s = first_audio_s = None
        while engine.has_work:
            for chunk in engine.step():
                _check(chunk)
                now = time.perf_counter() - ready
                text_s = text_s or (now if len(chunk.entries) else None)
                first_audio_s = first_audio_s or (
                    now if chunk.pcm is not None and len(chunk.pcm) else None
                )
        assert text_s is not None
        assert first_audio_s is not None
        prepared_ms.append(1e3 * (ready - began))
        first_ms.append(1e3 * first_audio_s)
        first_text_ms.append(1e3 * text_s)
    row: Row = {"first": "audio", "query_s": QUERY_S, "repeats": repeats}
    row |= {"prepare_ms": _median(prepared_ms), "first_text_ms": _median(first_text_ms)}
    return row | {"first_audio_ms": _median(first_ms), "most_ms": round(max(first_ms), 2)}


@dataclass(slots=True, eq=False)
class _Session:
    """One user, who asks again when the answer's audio has been played.

    Attributes:
        requests: The user's questions.
        asks_s: Time of the next question.
        asked_s: Time of the last question.
        plays_until_s: Time at which the audio received so far is played; None without audio.
        ended: The answer is complete.
    """

    requests: Iterator[Request]
    asks_s: float
    asked_s: float = 0.0
    plays_until_s: float | None = None
    ended: bool = True
    first_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    audio_s: float = 0.0

    def receive(self, chunk: Chunk, now_s: float, rate_hz: int) -> None:
        """Add a chunk received at a time."""
        if chunk.pcm is not None and len(chunk.pcm):
            chunk_s = len(chunk.pcm) / rate_hz
            self.audio_s += chunk_s
            if self.plays_until_s is None:
                self.first_s.append(now_s - self.asked_s)
                self.gaps_s.append(0.0)
                self.plays_until_s = now_s
            late_s = max(0.0, now_s - self.plays_until_s)
            self.gaps_s[-1] = max(self.gaps_s[-1], late_s)
            self.plays_until_s = max(now_s, self.plays_until_s) + chunk_s
        if chunk.reason is not None:
            self.ended = True
            self.asks_s = now_s if self.plays_until_s is None else self.plays_until_s


def session_row(engine: Engine, model: Any, sessions: int, entries: int, seconds: float) -> Row:
    """Run a number of sessions for some seconds; they start at random within the first two."""
    chance = np.random.default_rng(sessions)
    begins = chance.uniform(0.0, 2.0, sessions).tolist()
    # API servers compute features in their own processes, so this is done before the clock starts
    answers = 2 + int(seconds / 2.0)
    every: list[_Session] = []
    for number, begin in enumerate(begins):
        asked = questions(model, f"{sessions}.{number}", entries)
        made = [next(asked) for _ in range(answers)]
        every.append(_Session(iter(made), begin))
    by_id: dict[str, _Session] = {}
    began, idle_s = time.perf_counter(), 0.0
    while True:
        now = time.perf_counter() - began
        for session in every:
            if session.ended and session.asks_s <= now < seconds:
                request = next(session.requests)
                session.asked_s, session.ended, session.plays_until_s = now, False, None
                by_id[request.request_id] = session
                engine.submit(request)
        if not engine.has_work:
            if now >= seconds:
                break
            time.sleep(0.0005)
            idle_s += 0.0005
            continue
        for chunk in engine.step():
            _check(chunk)
            by_id[chunk.request_id].receive(chunk, time.perf_counter() - began, model.sample_rate)
    wall_s = time.perf_counter() - began
    first = sorted(1e3 * s for session in every for s in session.first_s)
    gaps = [gap for session in every for gap in session.gaps_s]
    row: Row = {"sessions": sessions, "answers": len(first), "first_audio_ms_p50": _median(first)}
    row["first_audio_ms_p95"] = round(first[int(0.95 * len(first))], 2)
    row["underruns"] = sum(gap > _LATE_S for gap in gaps)
    row["gap_ms_most"] = round(1e3 * max(gaps), 1)
    row["audio_s_per_s"] = round(sum(session.audio_s for session in every) / wall_s, 1)
    return row | {"idle_share": round(idle_s / wall_s, 3)}


def _check(chunk: Chunk) -> None:
    if chunk.error is not None:
        raise chunk.error


def _median(values: list[float]) -> float:
    return round(float(np.median(values)), 2)
