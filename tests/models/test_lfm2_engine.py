"""LFM2-Audio through the engine: the reference's entries, and the properties of every model."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace as replace_config
from typing import Any

import numpy as np
import pytest
import torch

from izwi.backends.torch.backend import torch_backend
from izwi.backends.torch.kv import bytes_per_page
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.inputs.conversation import AnswerContent, AudioContent, ConversationInput, SpokenTurn
from izwi.inputs.speech import SpeechInput, TranscriptionInput
from izwi.model.layers import KVSpec
from izwi.request.request import Chunk, EncodeInput, Reason, Request
from izwi_models.lfm2_audio import FAMILY
from izwi_models.lfm2_audio.pattern import Mode
from izwi_models.lfm2_audio.prompt import NOTHING, LFM2Prompt, entry_key, input_row
from izwi_models.qwen3_asr import FAMILY as ASR
from izwi_models.qwen3_chat import FAMILY as CHAT
from izwi_models.qwen3_tts import FAMILY as TTS
from tests.models.loading import Checkpoint, load_checkpoint, models_of
from tests.models.test_lfm2_audio import CASES, GOLDEN
from tests.models.tiny_asr import waveform, write_tiny_asr
from tests.models.tiny_chat import write_tiny_chat
from tests.models.tiny_lfm2_audio import CALM, LOUD, write_tiny_lfm2_audio
from tests.models.tiny_tts import write_tiny_tts

BACKEND = torch_backend("cpu", "float32")
CONFIG = EngineConfig(max_running=16, kv_bytes=1 << 24, page_size=8, max_step_tokens=64)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Any]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("tiny")
    return {
        "s2s": load_checkpoint(FAMILY, write_tiny_lfm2_audio(folder / "s2s"), BACKEND),
        "tts": load_checkpoint(TTS, write_tiny_tts(folder / "tts"), BACKEND),
        "asr": load_checkpoint(ASR, write_tiny_asr(folder / "asr"), BACKEND),
        "chat": load_checkpoint(CHAT, write_tiny_chat(folder / "chat"), BACKEND),
    }


@pytest.fixture(scope="module")
def model(models) -> Checkpoint:
    return models["s2s"]


class Given:
    """The output of one request."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, ...]] = []
        self.pcm: list[np.ndarray] = []
        self.order = ""  # T, A or, where audio left, S
        self.reason: Reason | None = None

    def add_chunk(self, chunk: Chunk) -> None:
        assert chunk.error is None, chunk.error
        rows = chunk.entries.tolist()
        new = [tuple(i for i in row if i >= 0) for row in rows]
        self.entries += new
        self.order += "".join("T" if len(ids) == 1 else "A" for ids in new)
        if chunk.pcm is not None and len(chunk.pcm):
            self.pcm.append(chunk.pcm)
            self.order += "S"
        self.reason = chunk.reason

    @property
    def audio(self) -> np.ndarray:
        return np.concatenate([np.zeros(0, np.float32), *self.pcm])


def run(engine: Engine, requests: list[Request], delays: tuple[int, ...] = ()) -> dict[str, Given]:
    """Run requests to their ends, each submitted so many steps after the one before."""
    given_: dict[str, Given] = defaultdict(Given)
    waiting = list(zip(requests, [*delays, *[0] * len(requests)], strict=False))
    pause = 0
    for _ in range(5000):
        while waiting and pause >= waiting[0][1]:
            engine.submit(waiting.pop(0)[0])
            pause = 0
        pause += 1
        for chunk in engine.step():
            given_[chunk.request_id].add_chunk(chunk)
        if not waiting and not engine.has_work:
            return given_
    raise AssertionError("the engine does not end")


def turn(*parts: Any, role: Role = Role.USER) -> SpokenTurn:
    return SpokenTurn(role, parts)


def talk(frontend: Any, name: str, *turns: SpokenTurn, **more: Any) -> Request:
    ask = ConversationInput(turns, **{"max_new_tokens": 40} | more)
    return frontend.prepare_conversation(name, "s2s", ask)


# -- parity ----------------------------------------------------------------------------------
class GivenAudio:
    """Stands for the encoder: the goldens' audio is drawn at random."""

    def encode(self, inputs: Any) -> list[Any]:
        return [torch.from_numpy(piece.values) for piece in inputs]


@pytest.mark.parametrize(
    "settings_",
    [pytest.param({}, marks=pytest.mark.slow), {"max_step_tokens": 11, "max_running": 3}],
)
@pytest.mark.parametrize("place", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
@pytest.mark.parametrize("most", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_the_engine_draws_the_references_entries(tmp_path, settings_, place, most):
    """Both kinds of generation of a golden at once, prompts in chunks among decodes."""
    case = CASES[place]
    loudness = LOUD if case["is_loud"] else CALM
    folder = write_tiny_lfm2_audio(tmp_path / "s2s", case["seed"], loudness=loudness)
    model: Any = FAMILY.load_model(folder, BACKEND)
    model._encoder = GivenAudio()
    engine = Engine({"s2s": model}, BACKEND, replace_config(CONFIG, **settings_))
    given_ = run(engine, [golden_request(place, case, mode, most) for mode in Mode], (0, 5))
    for mode in Mode:
        expected = [tuple(ids) for ids in case["runs"][mode.value]["entries"][:most]]
        assert given_[f"{place} {mode.value}"].entries == expected


def test_every_golden_has_a_place() -> None:
    assert len(CASES) == 3


def golden_request(n: int, case: dict[str, Any], mode: Mode, most: int) -> Request:
    rows: list[list[int]] = []
    keys: list[int] = []
    starts, inputs = [], []
    for kind, what in case["prompt"]:
        if kind == "audio":
            starts.append(len(rows))
            inputs.append(EncodeInput("segment", GOLDEN[f"audio_{n}"]))
            rows += [[NOTHING] * 9] * what
            keys += [1 << 62 | n << 20 | place for place in range(what)]
            continue
        entries = [tuple(ids) for ids in what] if kind == "frames" else [(i,) for i in what]
        rows += [input_row(entry, 8) for entry in entries]
        keys += [entry_key(entry) for entry in entries]
    prompt = LFM2Prompt(
        np.array(rows), np.array(keys), tuple(starts), tuple(inputs), mode is Mode.INTERLEAVED
    )
    count = min(most, len(case["runs"][mode.value]["entries"]))
    return Request(f"{n} {mode.value}", "s2s", prompt, max_entries=count)


# -- properties ------------------------------------------------------------------------------
def requests_of(models: dict[str, Any]) -> list[Request]:
    """Conversation, speech and transcription of the one model, and one of each other model."""
    s2s, greeting = models["s2s"].frontend, (ChatMessage(Role.USER, "Hello there."),)
    return [
        talk(s2s, "talk", turn("Who is there?"), seed=1, max_new_tokens=45),
        talk(s2s, "heard", turn(AudioContent(waveform(0.9))), seed=2, max_new_tokens=30),
        talk(s2s, "text", turn(AudioContent(waveform(0.9)), "?"), speaks=False, max_new_tokens=12),
        s2s.prepare_speech("said", "s2s", SpeechInput("Good day.", seed=3, max_new_tokens=30)),
        s2s.prepare_transcription(
            "written", "s2s", TranscriptionInput(waveform(1.3), max_new_tokens=15)
        ),
        models["tts"].frontend.prepare_speech(
            "tts", "tts", SpeechInput("Hello.", voice="vivian", seed=4, max_new_tokens=12)
        ),
        models["asr"].frontend.prepare_transcription(
            "asr", "asr", TranscriptionInput(waveform(1.1), max_new_tokens=12)
        ),
        models["chat"].frontend.prepare_chat(
            "chat", "chat", ChatInput(greeting, seed=5, max_new_tokens=14)
        ),
    ]


@pytest.fixture(scope="module")
def alone(models) -> dict[str, Given]:
    """What each request gives by itself."""
    given_ = {}
    for request in requests_of(models):
        engine = Engine(models_of(models), BACKEND, CONFIG)
        given_[request.request_id] = run(engine, [request])[request.request_id]
    assert {"T", "A", "S"} <= set(given_["talk"].order)
    assert len({len(one.audio) for one in given_.values()}) > 3
    return given_


def same(found: Given, expected: Given) -> None:
    assert found.entries == expected.entries
    assert found.reason is expected.reason
    np.testing.assert_array_equal(found.audio, expected.audio)


@pytest.mark.parametrize(
    "paused_at", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 9, 21))]
)
def test_a_pause_changes_nothing(models, alone, paused_at):
    engine = Engine(models_of(models), BACKEND, CONFIG)
    requests = {request.request_id: request for request in requests_of(models)}
    given_: dict[str, Given] = defaultdict(Given)
    for name in ("talk", "heard", "chat"):
        engine.submit(requests[name])
    for n in range(2000):
        if n == paused_at:
            engine.pause("talk")
        if n == paused_at + 6:
            engine.resume("talk")
        for chunk in engine.step():
            given_[chunk.request_id].add_chunk(chunk)
        if n > paused_at + 6 and not engine.has_work:
            break
    for name in ("talk", "heard", "chat"):
        same(given_[name], alone[name])


def test_memory_for_one_conversation_serves_three(models, alone):
    """Pages are evicted and made again from the log, trailers of convolutions included."""
    s2s = models["s2s"].model
    per_page = bytes_per_page(KVSpec.from_layers(s2s.layers), CONFIG.page_size, torch.float32)
    config = replace_config(CONFIG, kv_bytes=16 * per_page, max_running=3)
    requests = [r for r in requests_of(models) if r.model == "s2s"]
    engine = Engine({"s2s": s2s}, BACKEND, config)
    given_ = run(engine, requests)
    for request in requests:
        same(given_[request.request_id], alone[request.request_id])
    load = engine.load["s2s"]
    assert load["available_pages"] == load["pages"] == 16


def test_the_first_audio_is_sent_before_the_second_block_of_text(alone):
    order = alone["talk"].order
    first = order.index("S")
    assert order[:first].lstrip("T").strip("A") == ""
    assert order[:first].count("T") <= 6
    assert "T" in order[first:]


def test_a_third_turn_computes_what_is_new(model):
    """The conversation so far, its answers included, is found up to the last page border."""
    config = replace_config(CONFIG, kv_bytes=1 << 25)
    engine = Engine({"s2s": model.model}, BACKEND, config)
    turns: list[SpokenTurn] = []
    known = 0
    for n in range(3):
        turns.append(turn(AudioContent(waveform(1.0 + 0.3 * n))))
        request = talk(model.frontend, str(n), *turns, seed=n, max_new_tokens=20)
        before = dict(engine.load["s2s"])
        answer = run(engine, [request])[str(n)]
        hit = engine.load["s2s"]["prefix_positions_hit"] - before["prefix_positions_hit"]
        if n:
            # all that was computed before, but for what does not fill a page
            assert known - config.page_size < hit <= known
        alone_ = run(Engine({"s2s": model.model}, BACKEND, config), [request])[str(n)]
        same(answer, alone_)
        # the last entry of an answer is never run
        known = request.prompt.num_positions + len(answer.entries) - 1
        turns.append(turn(AnswerContent(tuple(answer.entries)), role=Role.ASSISTANT))


def test_the_audio_is_that_of_the_frames(model, alone):
    """Streamed audio equals that of one decode; frames that end a stretch of audio are silent."""
    frames = [ids for ids in alone["talk"].entries if len(ids) == 8 and ids[0] != 2048]
    codec = model.model.tracks[1].codec
    kinds = {"float": torch.float32, "int64": torch.int64}
    state = {
        name: torch.zeros((1, *spec.shape), dtype=kinds[spec.dtype])
        for name, spec in codec.state.items()
    }
    with torch.inference_mode():
        whole, _ = codec.decode(torch.tensor([[*frames, (-1,) * 8]]), state)
    expected = whole[0, codec.lookahead_samples :][: len(frames) * codec.frame_samples]
    assert alone["talk"].audio.shape == expected.shape
    np.testing.assert_allclose(alone["talk"].audio, expected.numpy(), atol=1e-5)
