"""A small engine that really emits audio and text through the same protocol, and a live server."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import uvicorn
from typer.testing import CliRunner

from izwi.audio.encode import wav_header
from izwi.audio.pcm import to_s16le
from izwi.engine_client.protocol import Answer, Answers
from izwi.errors import CheckpointError, InvalidRequest, IzwiError, ModelNotFound, Overloaded
from izwi.inputs.chat import AnswerText
from izwi.inputs.speech import Transcript, VoicePrompt
from izwi.metrics import LOAD_KEYS
from izwi.model.capability import Capability
from izwi.model.frontend import AudioEntries
from izwi.request.request import Chunk, Reason, Request
from izwi_api.cli.main import app as command_line
from izwi_api.serve import local_services
from izwi_api.serve.app import create_app
from izwi_api.services.context import Services
from izwi_api.settings import Settings
from izwi_api.voices.store import VoiceStore
from izwi_models.qwen3_chat.tool_calls import CallReader

RATE = 24_000
FRAME = 1920


@dataclass
class FakePrompt:
    kind: str
    text: str = ""
    num_positions: int = 1
    encode_inputs: tuple = ()
    hertz: float = 220.0


class FakeSpeech:
    """Emits one frame of a sine for each character; the voice sets the pitch."""

    capabilities = (Capability.SPEAK,)
    audio_entries = AudioEntries()
    sample_rate = RATE
    frame_samples = FRAME
    num_codebooks = 4
    speakers = ("Ann", "Bob")
    languages = ("english",)
    can_clone = True
    follows_instructions = False

    def __init__(self):
        self.asked = []

    def split_text(self, text):
        return re.findall(r"[^.]*[^.\s][^.]*\.?", text)

    def prepare_speech(self, request_id, model, ask):
        self.asked.append(ask)
        if ask.language not in (None, "english"):
            raise InvalidRequest(f"no language {ask.language!r}", param="language")
        if "PREPARE" in ask.text:
            raise RuntimeError("a bug with the secret path /etc/x")
        hertz = (
            {"Ann": 220.0, "Bob": 330.0, None: 220.0}.get(ask.voice, 440.0)
            if isinstance(ask.voice, str | None)
            else 440.0
        )
        count = min(len(ask.text), (ask.max_new_tokens or 10**6))
        prompt = FakePrompt("speech", ask.text, num_positions=len(ask.text), hertz=hertz)
        return Request(request_id, model, prompt, seed=ask.seed, max_entries=count)

    def prepare_voice(self, request_id, model, samples, text):
        assert samples.dtype == np.float32
        return Request(request_id, model, FakePrompt("voice"), encode_only=True)

    def read_voice(self, encoded, text):
        return VoicePrompt(encoded[0], np.ones((3, 4), np.int64) if text else None, text)


class FakeTranscription:
    """Transcribes one word for every second, in pieces of ten seconds."""

    capabilities = (Capability.TRANSCRIBE,)
    num_codebooks = 1
    languages = ("english",)
    follows_context = True

    @property
    def language_codes(self):
        return {"English": "en"}

    def split_audio(self, samples):
        step = 160_000
        return [(i, min(i + step, len(samples))) for i in range(0, len(samples), step)]

    def prepare_transcription(self, request_id, model, ask):
        head = "" if ask.language else "English|"  # as models do, it says first what it hears
        text = head + " ".join(["word"] * max(1, round(len(ask.samples) / 16_000)))
        if ask.context:
            text += f" {ask.context}"
        text = text[: ask.max_new_tokens]
        prompt = FakePrompt("listen", text, num_positions=7)
        count = len(text)
        return Request(request_id, model, prompt, max_entries=count, logprobs=ask.logprobs)

    def read(self, token_ids, language):
        text = "".join(map(chr, token_ids)).strip()
        if language:
            return Transcript(language, text)
        head, tag, rest = text.partition("|")
        return Transcript(head, rest.strip()) if tag else Transcript("", text)

    def spell(self, token_ids, language):
        text = "".join(map(chr, token_ids))
        said = text if language else text[text.find("|") + 1 :]
        start = len(text) - len(said.lstrip())
        return [b"" if at < start else char.encode() for at, char in enumerate(text)]


class FakeChat:
    """Repeats the last message. With thinking, its thought is the message's length."""

    capabilities = (Capability.CHAT,)
    num_codebooks = 1
    max_positions = 4096

    def __init__(self):
        self.asked = []

    def prepare_chat(self, request_id, model, ask):
        self.asked.append(ask)
        said = ask.messages[-1].content
        if said.startswith("PREPARE"):
            raise RuntimeError("a bug with the secret path /etc/x")
        text = f"{{{len(said)} long}}{said}" if ask.thinking else said or " "
        limit = min(len(text), ask.max_new_tokens or len(text))
        size = sum(len(message.content) for message in ask.messages)
        prompt = FakePrompt("listen", text, num_positions=size)
        reported = {"logprobs": ask.logprobs, "top_logprobs": ask.top_logprobs}
        return Request(
            request_id, model, prompt, seed=ask.seed, max_entries=limit, ask=ask, **reported
        )

    def open_answer(self, request):
        ask = request.ask
        if not ask.tools or ask.tool_choice == "none":
            return FakeAnswerReader()
        return FakeAnswerReader(None if ask.parallel_tool_calls else 1)


class FakeAnswerReader:
    """Text in braces is a thought; with tools, calls are read in Qwen3's format."""

    def __init__(self, most_calls=0):
        self.num_reasoning_tokens, self.thinks = 0, False
        self.calls = None if most_calls == 0 else CallReader(most_calls)

    @property
    def num_calls(self):
        return 0 if self.calls is None else self.calls.num_calls

    @property
    def ended(self):
        return self.calls is not None and self.calls.ended

    def spell(self, token_id):
        return chr(token_id).encode()

    def read(self, token_ids):
        if self.calls is not None:
            return AnswerText("", *self.calls.write("".join(map(chr, token_ids))))
        reasoning, content = "", ""
        for character in map(chr, token_ids):
            self.thinks |= character == "{"
            self.num_reasoning_tokens += self.thinks
            if character not in "{}":
                reasoning += character * self.thinks
                content += character * (not self.thinks)
            self.thinks &= character != "}"
        return AnswerText(reasoning, content)

    def close(self):
        return AnswerText() if self.calls is None else AnswerText("", *self.calls.close())


class FakeRegistry:
    def adapter(self, name):
        return None

    def adapters_of(self, name):
        return []

    def fingerprint(self, name):
        return "f"

    def __init__(self, **models):
        self.models = models

    def names(self):
        return list(self.models)

    def model(self, name):
        if name not in self.models:
            raise ModelNotFound("no such model is served", param="model")
        return self.models[name]

    def _of(self, name, task):
        if task not in self.model(name).capabilities:
            raise InvalidRequest("the model does something else", param="model")
        return self.models[name]

    def speech(self, name):
        return self._of(name, Capability.SPEAK)

    def transcription(self, name):
        return self._of(name, Capability.TRANSCRIBE)

    def chat(self, name):
        return self._of(name, Capability.CHAT)

    def default(self, task):
        for name, model in self.models.items():
            if task in model.capabilities:
                return name
        raise ModelNotFound("no such model is served", param="model")


class FakeStream(Answer):
    def __init__(self, engine, request):
        self.engine, self.request = engine, request
        self.queue = asyncio.Queue()
        self.written = asyncio.Queue()  # text that came after the prompt; "" ends it
        self.ended = False
        engine.live[request.request_id] = self
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def __anext__(self):
        if self.ended and self.queue.empty():
            raise StopAsyncIteration
        return await self.queue.get()

    def write(self, text_ids, closed):
        for text in ("".join(map(chr, text_ids)), *([""] if closed else [])):
            self.written.put_nowait(text)

    def abort(self):
        if not self.ended:
            self.engine.aborted.append(self.request.request_id)
            self.task.cancel()
            self._put([], reason=Reason.ABORTED)  # a reader may wait

    def _end(self):
        self.ended = True
        self.engine.live.pop(self.request.request_id, None)

    def _put(self, codes, **fields):
        entries = np.array(codes or np.zeros((0, 1)), np.int64)
        if fields.get("reason"):
            self._end()
        self.queue.put_nowait(Chunk(self.request.request_id, entries, **fields))

    async def _run(self):
        prompt, limit = self.request.prompt, self.request.max_entries
        if self.refused:  # a queue refuses on the stream, as the engine's does
            error = Overloaded("the queue is full", retry_after_s=7)
            self._put([], reason=Reason.ERROR, error=error)
            return
        if prompt.kind == "voice":
            self._put([], encoded=(np.ones(8, np.float32),), reason=Reason.STOP)
            return
        if self.request.open_input:
            await self._run_open()
            return
        for index, character in enumerate(prompt.text[:limit]):
            await self.engine.step()
            if character == "\x01":
                error = IzwiError("the tensor broke")
                self._put([], reason=Reason.ERROR, error=error)
                return
            last = {"reason": Reason.STOP} if index == limit - 1 else {}
            if prompt.kind == "listen":
                if self.request.logprobs:
                    reported = [-ord(character) / 1024]
                    for other in range(self.request.top_logprobs):
                        reported += [ord("a") + other, -1.0 - other]
                    last["logprobs"] = np.array(
                        [reported] if len(reported) > 1 else reported, np.float32
                    )
                self._put([[ord(character)]], **last)
                continue
            self._sing(index, character, **last)

    async def _run_open(self):
        count = 0
        while text := await self.written.get():
            for character in text:
                await self.engine.step()
                if character == "\x01":
                    self._put([], reason=Reason.ERROR, error=IzwiError("the tensor broke"))
                    return
                self._sing(count, character)
                count += 1
        self._put([], reason=Reason.STOP)

    def _sing(self, index, character, **last):
        at = np.arange(index * FRAME, (index + 1) * FRAME) / RATE
        pcm = (0.3 * np.sin(2 * np.pi * self.request.prompt.hertz * at)).astype(np.float32)
        self._put([[ord(character)] * 4], pcm=pcm, **last)
        self.engine.num_frames += 1


@dataclass
class FakeEngine:
    step_s: float = 0.001
    alive: bool = False
    num_frames: int = 0
    live: dict = field(default_factory=dict)
    aborted: list = field(default_factory=list)
    num_submitted: int = 0
    seeds: list = field(default_factory=list)
    holds_at: int | None = None  # no more frames than these are made while it is set

    async def step(self):
        await asyncio.sleep(self.step_s)
        while self.holds_at is not None and self.num_frames >= self.holds_at:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    @property
    def load(self):
        return {"tts": dict.fromkeys(LOAD_KEYS, 7.0)}

    def start(self):
        self.alive = True

    async def stop(self):
        self.alive = False
        for stream in list(self.live.values()):
            stream.abort()

    def submit(self, request):
        return self.submit_all([request])[0]

    def submit_all(self, requests):
        self.num_submitted += len(requests)
        self.seeds += [request.seed for request in requests]
        streams = [FakeStream(self, request) for request in requests]
        for stream in streams:  # all or none
            stream.refused = any("\x02" in request.prompt.text for request in requests)
        return Answers(streams)


@pytest.fixture(scope="session")
def tone_wav():
    @cache
    def make(seconds=1.0, rate=16_000):
        # odd and even harmonics swell by turns four times a second: what does not move, or moves
        # in all bands together, is no speech to the detection
        at = np.arange(int(seconds * rate)) / rate
        swell = 0.9 * np.sin(2 * np.pi * 4 * at)
        harmonics = [np.sin(2 * np.pi * 130 * k * at) / k for k in range(1, 13)]
        voice = sum(wave * (1 + (-1) ** k * swell) for k, wave in enumerate(harmonics))
        pcm = to_s16le((0.12 * voice).astype(np.float32))
        return wav_header(rate, len(pcm)) + pcm

    return make


@pytest.fixture
def fake_world():
    """An engine, an empty registry, and models under the embedded names."""

    def make():
        models = {"izwi-tiny-tts": FakeSpeech(), "izwi-tiny-asr": FakeTranscription()}
        return FakeEngine(), FakeRegistry(), models

    return make


@pytest.fixture
def cli(monkeypatch, tmp_path, fake_world):
    """The command line, in an empty folder and over the fake world, as a function.

    The folders "missing" and "broken" hold no checkpoint and a broken one.
    """
    engine, registry, named = fake_world()
    settings = Settings(home=tmp_path / "home")
    voices, opened, folder = VoiceStore(settings.home / "voices"), [], tmp_path / "work"

    def open_services(sources, where):
        opened.extend(sources)
        if "missing" in sources:
            raise ModelNotFound("no checkpoint 'missing'", param="model")
        if "broken" in sources:
            raise CheckpointError("tensor talker.norm.weight is missing")
        registry.models = {source: named[source] for source in sources}
        return Services(engine, registry, settings, voices)

    monkeypatch.setattr(local_services, "open_services", open_services)
    monkeypatch.setenv("IZWI_HOME", str(settings.home))
    monkeypatch.setenv("IZWI_SERVER", "none")
    folder.mkdir()
    monkeypatch.chdir(folder)

    def run(*arguments, code=0, **options):
        result = CliRunner().invoke(command_line, list(arguments), **options)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    run.engine, run.speech, run.voices = engine, named["izwi-tiny-tts"], voices
    run.folder, run.opened = folder, opened
    return run


@contextmanager
def listening(app, ws="none"):
    """Serve an app at a free port of this machine, in a thread."""
    with running(uvicorn.Config(app, port=0, log_level="critical", ws=ws)) as port:
        yield port


@contextmanager
def running(config):
    """Run a server in a thread, and yield its port."""
    runner = uvicorn.Server(config)
    thread = threading.Thread(target=runner.run)
    thread.start()
    wait_for(lambda: runner.started)
    try:
        yield runner.servers[0].sockets[0].getsockname()[1]
    finally:
        runner.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop"


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    engine = FakeEngine()
    registry = FakeRegistry(**{"tts": FakeSpeech(), "org/asr": FakeTranscription()})
    settings = Settings(home=tmp_path_factory.mktemp("home"), voice_aliases={"alloy": "Bob"})
    with listening(create_app(engine, registry, settings)) as port:
        yield SimpleNamespace(
            url=f"http://127.0.0.1:{port}",
            port=port,
            engine=engine,
            registry=registry,
            settings=settings,
            wait_for=wait_for,
        )


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.url, timeout=60) as http:
        yield http
    server.engine.step_s = 0.001
    wait_for(lambda: not server.engine.live)


def wait_for(condition, seconds=60.0):
    """Poll often at first, then rarely: polling takes processor time from a server that starts."""
    until, pause_s = time.monotonic() + seconds, 0.002
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(pause_s)
        pause_s = min(1.3 * pause_s, 0.02)
