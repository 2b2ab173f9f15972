"""One engine runs speech, transcription, chat and speech to speech: each as if it were alone.

Outputs are short, and text and frames take turns every two and three entries, so that a case is
some fifteen steps; what each request gives alone is computed once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from izwi.backends.torch.backend import torch_backend
from izwi.backends.torch.kv import bytes_per_page
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.inputs.conversation import AnswerContent, AudioContent, ConversationInput, SpokenTurn
from izwi.inputs.speech import SpeechInput, TranscriptionInput
from izwi.model.layers import KVSpec
from izwi.request.request import Request
from izwi_models.lfm2_audio import FAMILY
from izwi_models.qwen3_asr import FAMILY as ASR
from izwi_models.qwen3_chat import FAMILY as CHAT
from izwi_models.qwen3_tts import FAMILY as TTS
from tests.examples import examples
from tests.models.loading import load_checkpoint, models_of
from tests.models.test_lfm2_engine import Given, same, turn
from tests.models.tiny_asr import waveform, write_tiny_asr
from tests.models.tiny_chat import write_tiny_chat
from tests.models.tiny_lfm2_audio import CALM, write_tiny_lfm2_audio
from tests.models.tiny_tts import write_tiny_tts

BACKEND = torch_backend("cpu", "float32")
CONFIG = EngineConfig(max_running=12, kv_bytes=1 << 22, page_size=8, max_step_tokens=64)
# now and then text requests audio, and audio ends
LIVELY = (
    *CALM,
    ("lfm.embed_tokens.weight", 128, 1.3),
    ("lfm.embed_tokens.weight", 130, 1.2),
    ("depth_embeddings.0.embedding.weight", 2048, 1.5),
)
FRAMES = ((1, 2, 3, 4, 5, 6, 7, 8), (9, 8, 7, 6, 5, 4, 3, 2))


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Any]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("tiny")
    s2s = write_tiny_lfm2_audio(folder / "s2s", loudness=LIVELY, blocks=(2, 3))
    return {
        "s2s": load_checkpoint(FAMILY, s2s, BACKEND),
        "tts": load_checkpoint(TTS, write_tiny_tts(folder / "tts"), BACKEND),
        "asr": load_checkpoint(ASR, write_tiny_asr(folder / "asr"), BACKEND),
        "chat": load_checkpoint(CHAT, write_tiny_chat(folder / "chat"), BACKEND),
    }


def talk(frontend: Any, name: str, *turns: SpokenTurn, **more: Any) -> Request:
    ask = ConversationInput(turns, **{"max_new_tokens": 11} | more)
    return frontend.prepare_conversation(name, "s2s", ask)


def requests_of(models: dict[str, Any]) -> list[Request]:
    """All that the one model does, and one of each other model."""
    s2s, tts, asr, chat = (models[name].frontend for name in ("s2s", "tts", "asr", "chat"))
    hello = (ChatMessage(Role.USER, "Hello there."),)
    clip = AudioContent(waveform(0.6))
    answer = turn(AnswerContent(((200,), (201,), *FRAMES)), role=Role.ASSISTANT)
    say = {"temperature": 0.9, "max_new_tokens": 11}
    return [
        talk(s2s, "talk", turn("Who is there?"), seed=1),
        talk(s2s, "heard", turn(clip), seed=2, temperature=1.0),
        talk(s2s, "turns", turn(clip), answer, turn("And?"), seed=3, max_new_tokens=9),
        talk(s2s, "greedy", turn(clip, "?"), temperature=0.0, max_new_tokens=8),
        talk(s2s, "text", turn(clip), speaks=False, temperature=1.0, max_new_tokens=7, seed=4),
        s2s.prepare_speech("said", "s2s", SpeechInput("Hi.", seed=8, **say)),
        s2s.prepare_transcription(
            "written", "s2s", TranscriptionInput(waveform(0.8), temperature=1.0, max_new_tokens=6)
        ),
        s2s.prepare_chat(
            "penalty",
            "s2s",
            ChatInput(hello, temperature=1.0, frequency_penalty=1.0, max_new_tokens=6),
        ),
        tts.prepare_speech(
            "tts", "tts", SpeechInput("Hello.", voice="vivian", seed=4, max_new_tokens=5)
        ),
        asr.prepare_transcription(
            "asr", "asr", TranscriptionInput(waveform(0.7), temperature=0.8, max_new_tokens=7)
        ),
        chat.prepare_chat("chat", "chat", ChatInput(hello, seed=5, max_new_tokens=8)),
    ]


Times = dict[int, list[str]]


def run(engine: Engine, arrivals: dict[int, list[Request]], leaves: Times) -> dict[str, Given]:
    """Submit and abort requests at steps, and run to the end of all others."""
    given_: dict[str, Given] = defaultdict(Given)
    last = max(arrivals)
    for n in range(2000):
        for request in arrivals.get(n, ()):
            engine.submit(request)
        for name in leaves.get(n, ()):
            engine.abort(name)
        for chunk in engine.step():
            given_[chunk.request_id].add_chunk(chunk)
        if n >= last and not engine.has_work:
            return given_
    raise AssertionError("the engine does not end")


@pytest.fixture(scope="module")
def requests(models) -> list[Request]:
    return requests_of(models)


@pytest.fixture(scope="module")
def alone(models, requests) -> dict[str, Given]:
    """What each request gives by itself."""
    given_ = {}
    for request in requests:
        engine = Engine(models_of(models), BACKEND, CONFIG)
        name = request.request_id
        given_[name] = run(engine, {0: [request]}, {})[name]
    assert all(len(one.entries) > 2 for one in given_.values())
    assert given_["talk"].order.replace("S", "").startswith("TTAAATTAAAT")
    assert [name for name, one in given_.items() if len(one.audio)] == [
        *("talk", "heard", "turns", "greedy", "said", "tts")
    ]
    return given_


@pytest.mark.timeout(3600)  # at night there are forty times as many
@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_each_output_is_that_of_its_single_run(models, requests, alone, data):
    """In any order, at any time, with little memory, and beside requests whose callers leave."""
    chosen = data.draw(st.lists(st.sampled_from(requests), min_size=2, max_size=5, unique=True))
    pages = data.draw(st.sampled_from([0, 24]))
    spec = KVSpec.from_layers(models["s2s"].model.layers)
    kv_bytes = pages * bytes_per_page(spec, CONFIG.page_size, torch.float32) or CONFIG.kv_bytes
    config = replace(
        CONFIG,
        max_running=data.draw(st.integers(2, 5)),
        max_step_tokens=data.draw(st.sampled_from([16, 40, 256])),
        kv_bytes=len(models) * kv_bytes,
    )
    arrivals: defaultdict[int, list[Request]] = defaultdict(list)
    for request in chosen:
        arrivals[data.draw(st.integers(0, 6))].append(request)
    leaver = data.draw(st.sampled_from([None, *chosen[1:]]))
    leaves = {} if leaver is None else {data.draw(st.integers(0, 14)): [leaver.request_id]}
    given_ = run(Engine(models_of(models), BACKEND, config), arrivals, leaves)
    for request in chosen:
        if request is not leaver:
            same(given_[request.request_id], alone[request.request_id])
