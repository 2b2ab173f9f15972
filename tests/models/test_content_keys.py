"""Routers, which have no models, know the same keys of a prompt as engines."""

from __future__ import annotations

import numpy as np
import pytest

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.inputs.speech import AlignmentInput, ReferenceClip, SpeechInput, TranscriptionInput
from izwi.request.sequence import Sequence
from izwi.runner.batch import span_of

TTS, ASR, CHAT, ALIGNER = (f"izwi-tiny-{name}" for name in ("tts", "asr", "chat", "aligner"))


@pytest.fixture(scope="module")
def registry():
    made = Registry(torch_backend("cpu", "float32"))
    for name in (TTS, ASR, CHAT, ALIGNER):
        made.load(name)
    return made


def requests(registry):
    noise = np.random.default_rng(1).standard_normal(20_000).astype(np.float32) * 0.1
    speaks, hears = registry.speech(TTS), registry.transcription(ASR)
    yield speaks.prepare_speech("a", TTS, SpeechInput("The train leaves.", voice="amber"))
    clip = ReferenceClip(noise, "The train left at seven.")
    yield speaks.prepare_speech("b", TTS, SpeechInput("The train leaves.", voice=clip))
    yield hears.prepare_transcription("c", ASR, TranscriptionInput(noise))
    ask = ChatInput((ChatMessage(Role.USER, "When does it leave?"),))
    yield registry.chat(CHAT).prepare_chat("d", CHAT, ask)
    ask = AlignmentInput(noise, "two words")
    yield registry.model(ALIGNER).prepare_alignment("e", ALIGNER, ask)


def test_keys_of_a_prompt_are_those_of_the_model(registry):
    for request in requests(registry):
        num_positions = request.prompt.num_positions
        sequence = Sequence(request, 0, 0.0)
        keys = registry.models[request.model].content_keys(span_of(sequence, 0, num_positions))
        assert len(keys) == num_positions
        assert request.prompt.content_keys.tolist() == keys
