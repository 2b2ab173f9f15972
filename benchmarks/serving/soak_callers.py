"""Callers of the soak: one request of each kind, compared with the undisturbed answer.

Every request has a seed, and a system message where there may be one (a template may say the time
otherwise), so on a CPU its answer is the same whatever else runs, also when its engine is killed
meanwhile. The undisturbed answers are taken one after the other, before the load
begins.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
from websockets.exceptions import ConnectionClosed, InvalidStatus

from benchmarks.live.memory import INSTRUCTIONS, session
from benchmarks.measure import TEXTS
from benchmarks.random_checkpoint import EMBEDDED, EMBEDDED_LISTENER
from izwi.audio.pcm import from_s16le

End = Literal["equal", "wrong", "cut", "failed", "refused", "left", "key_removed"]

# How often each kind is asked, of the sum of all.
MIX = {"speech": 6, "clone": 2, "file": 3, "chat": 4, "live": 2, "slow": 1, "vanish": 2}
COMPARED = ("speech", "clone", "file", "chat", "live", "slow")
# Different requests of each kind.
VARIANTS = {"speech": 8, "clone": 4, "file": 6, "chat": 6, "live": 4, "slow": 2, "vanish": 8}

EMBEDDED_CHAT = "izwi-tiny-chat"
_QUESTIONS = (
    "What is 12 times 7?",
    "How many legs does a spider have?",
    "Spell garden.",
    "Is 17 more than 71?",
    "What is 340 plus 28?",
    "What comes after Tuesday?",
)
_VOICES = ("amber", "felix", "clara", "greta")
_REFUSED = (429, 503)
# A slow client reads this much at a time: 24 KB/s, half as fast as it is played.
_SLOW_BYTES, _SLOW_S = 4096, 0.17
_TIMEOUT_S = 180.0
_WAV_HEADER_BYTES = 44
_HEARD = "conversation.item.input_audio_transcription.completed"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as its caller saw it; `began_s` by `time.monotonic`, times in seconds."""

    kind: str
    began_s: float
    first_s: float
    total_s: float
    end: End
    detail: str = ""


@dataclass(slots=True)
class Answer:
    """What has arrived of an answer.

    Attributes:
        began_s: When it was asked.
        first_s: Seconds until the first part; 0 before.
        digest: Of all that came.
        last: The last part, of answers in words.
    """

    began_s: float = field(default_factory=time.monotonic)
    first_s: float = 0.0
    digest: Any = field(default_factory=hashlib.sha256)
    last: bytes = b""

    def add(self, part: bytes, *, is_text: bool = False) -> None:
        """Add what came."""
        self.last = part if is_text else b""
        self.first_s = self.first_s or time.monotonic() - self.began_s
        self.digest.update(part)


class Refused(Exception):
    """The server answered 429 or 503."""


class Failed(Exception):
    """The server answered with another error, or something was missing."""


class Callers:
    """Asks, and compares.

    Args:
        url: Of the server.
        key: The key that requests have, until it is changed.
    """

    def __init__(self, url: str, key: str):
        self.key = key
        self._url = url
        self._pause_s = 0.0  # of slow clients; none while answers are learnt
        self._known: dict[tuple[str, int], str] = {}
        self._clips: list[tuple[str, bytes]] = []
        # a slow client has a small buffer, so that the server has to wait
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        self._http = aiohttp.ClientSession(
            url, connector=connector, timeout=timeout, read_bufsize=_SLOW_BYTES
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    async def learn(self) -> None:
        """Take the undisturbed answers, one after the other.

        Raises:
            Failed: Two answers to the same request differ, so nothing can be compared.
        """
        for number, text in enumerate(TEXTS[: VARIANTS["file"]]):
            body = _speech(text, number, voice=_VOICES[number % len(_VOICES)]) | {
                "response_format": "wav"
            }
            async with self._http.post("/v1/audio/speech", json=body, headers=self._headers) as got:
                self._clips.append((text, await got.read()))
        for kind in COMPARED:
            for number in range(VARIANTS[kind]):
                self._known[kind, number] = await self._digest(kind, number)
        for kind in COMPARED:
            if await self._digest(kind, 0) != self._known[kind, 0]:
                raise Failed(f"two undisturbed answers to {kind} 0 differ")
        self._pause_s = _SLOW_S

    async def ask(self, kind: str, number: int) -> Asked:
        """Send one request, and return what became of it; raises nothing."""
        answer, key = Answer(), self.key
        end: End = "left" if kind == "vanish" else "equal"
        detail = ""
        try:
            await self._ask(kind, number, answer)
            known = self._known.get((kind, number))
            if kind != "vanish" and answer.digest.hexdigest() != known:
                end, detail = "wrong", answer.last.decode(errors="replace")
        except Refused as error:
            end, detail = "refused", str(error)
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError) as error:
            end, detail = "cut", repr(error)
        except (Failed, RuntimeError, OSError, aiohttp.ClientError, ConnectionClosed) as error:
            # open live sessions end with their key
            end, detail = ("failed", repr(error))
            if kind == "live" and key != self.key:
                end = "key_removed"
        total_s = time.monotonic() - answer.began_s
        return Asked(kind, answer.began_s, answer.first_s, total_s, end, detail)

    async def is_refused(self, key: str) -> bool:
        """Return whether a key gets 401."""
        headers = {"authorization": f"Bearer {key}"}
        async with self._http.get("/v1/models", headers=headers) as answer:
            return answer.status == 401

    async def _digest(self, kind: str, number: int) -> str:
        answer = Answer()
        await self._ask(kind, number, answer)
        return str(answer.digest.hexdigest())

    @property
    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    async def _ask(self, kind: str, number: int, answer: Answer) -> None:
        if kind == "live":
            await self._live(number, answer)
        elif kind == "file":
            await self._file(number, answer)
        elif kind == "chat":
            await self._chat(number, answer)
        elif kind == "vanish":
            await self._vanish(number, answer)
        else:
            await self._speak(kind, number, answer)

    async def _speak(self, kind: str, number: int, answer: Answer) -> None:
        text = TEXTS[number % len(TEXTS)]
        body = _speech(text, number, voice=_VOICES[number % len(_VOICES)])
        if kind == "clone":
            said, clip = self._clips[number]
            del body["voice"]
            encoded = base64.b64encode(clip).decode()
            body |= {"ref_audio": f"data:audio/wav;base64,{encoded}", "ref_text": said}
        if kind == "slow":
            body["input"] = " ".join(TEXTS[number : number + 4])
        async with self._http.post("/v1/audio/speech", json=body, headers=self._headers) as got:
            await _check(got)
            async for part in got.content.iter_chunked(_SLOW_BYTES):
                answer.add(part)
                if kind == "slow":
                    await asyncio.sleep(self._pause_s)

    async def _file(self, number: int, answer: Answer) -> None:
        form = aiohttp.FormData()
        form.add_field("model", EMBEDDED_LISTENER)
        form.add_field("file", self._clips[number][1], filename="clip.wav")
        path = "/v1/audio/transcriptions"
        async with self._http.post(path, data=form, headers=self._headers) as got:
            await _check(got)
            answer.add((await got.json())["text"].encode(), is_text=True)

    async def _chat(self, number: int, answer: Answer) -> None:
        path = "/v1/chat/completions"
        async with self._http.post(path, json=question(number), headers=self._headers) as got:
            await _check(got)
            is_done = False
            async for line in got.content:
                data = line.removeprefix(b"data: ").strip()
                if data == b"[DONE]":
                    is_done = True
                elif data:
                    answer.add(_delta(json.loads(data)))
            if not is_done:
                raise Failed("the stream ended without [DONE]")

    async def _vanish(self, number: int, answer: Answer) -> None:
        """Leave: half of these callers before the first byte, half behind it."""
        body = _speech(" ".join(TEXTS), number, voice=_VOICES[number % len(_VOICES)])
        async with self._http.post("/v1/audio/speech", json=body, headers=self._headers) as got:
            await _check(got)
            if number % 2:
                answer.add(await got.content.readany())
            got.close()

    async def _live(self, number: int, answer: Answer) -> None:
        """A typed question, one that is spoken, and in each second session no good-bye."""
        try:
            async with session(self._url, number, self.key) as talker:
                answer.began_s = time.monotonic()
                answer.add(_said(await talker.answer(None)), is_text=True)
                question = from_s16le(self._clips[number][1][_WAV_HEADER_BYTES:])
                answer.add(_said(await talker.answer(question)), is_text=True)
                if number % 2:
                    talker.abort()
        except InvalidStatus as error:
            if error.response.status_code in _REFUSED:
                raise Refused(str(error)) from error
            raise Failed(str(error)) from error
        except ConnectionClosed:
            if not number % 2:
                raise


def question(number: int) -> dict[str, Any]:
    """Return the body of a chat request; its prompt is the same at any time of day."""
    return {
        "model": EMBEDDED_CHAT,
        "messages": [
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": _QUESTIONS[number]},
        ],
        "stream": True,
        "seed": number,
    }


def _said(events: Sequence[Mapping[str, Any]]) -> bytes:
    """Return what was heard of a question, the words of its answer, and whether any audio came."""
    heard = [event["transcript"] for event in events if event["type"] == _HEARD]
    (item,) = events[-1]["response"]["output"]
    words = item["content"][0]["transcript"]
    has_audio = any(event["type"] == "response.output_audio.delta" for event in events)
    return f"heard {heard}, answered {words!r}, audio {has_audio}".encode()


def _speech(text: str, seed: int, **more: str) -> dict[str, Any]:
    return {"model": EMBEDDED, "input": text, "seed": seed, "response_format": "pcm", **more}


def _delta(chunk: Mapping[str, Any]) -> bytes:
    if "error" in chunk:
        raise Failed(str(chunk["error"]))
    return "".join(one["delta"].get("content") or "" for one in chunk["choices"]).encode()


async def _check(got: aiohttp.ClientResponse) -> None:
    if got.status == 200:
        return
    text = ""
    with suppress(aiohttp.ClientError):
        text = await got.text()
    if got.status in _REFUSED:
        raise Refused(f"{got.status}: {text}")
    raise Failed(f"{got.status}: {text}")
