"""A small checkpoint of every family, and three requests to each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.inputs.speech import ReferenceClip, SpeechInput, TranscriptionInput
from izwi.model.family import Family
from izwi.request.request import Request
from izwi_models.qwen3_asr import FAMILY as ASR
from izwi_models.qwen3_chat import FAMILY as CHAT
from izwi_models.qwen3_tts import FAMILY as TTS
from tests.models.tiny_asr import waveform, write_tiny_asr
from tests.models.tiny_chat import UNTIED, write_tiny_chat
from tests.models.tiny_tts import write_tiny_tts

TEXTS = ("Hello there.", "The second one is a little longer, 123.", "and a third")


def write_untied(folder: Path) -> Path:
    return write_tiny_chat(folder, UNTIED)


def write_cloning(folder: Path) -> Path:
    return write_tiny_tts(folder, "base")


KINDS = {
    "tts": (TTS, write_tiny_tts),
    "tts, cloning": (TTS, write_cloning),
    "asr": (ASR, write_tiny_asr),
    "chat": (CHAT, write_tiny_chat),
    "chat, untied": (CHAT, write_untied),
}


def request_of(family: Family, frontend: Any, i: int) -> Request:
    """Greedy but for the second one where the family samples."""
    sampled = None if i == 1 else 0
    if family is TTS:
        # clips of two buckets: the encoders are captured, too
        clip = ReferenceClip(waveform(1.2 + 0.7 * i), TEXTS[i] if i else None)
        voice = clip if frontend.can_clone else None
        ask = SpeechInput(TEXTS[i], voice=voice, temperature=sampled, seed=i, max_new_tokens=24)
        return frontend.prepare_speech(str(i), "m", ask)
    if family is CHAT:
        said = (ChatMessage(Role.USER, TEXTS[i]),)
        chat = ChatInput(said, temperature=sampled, seed=i, max_new_tokens=24)
        return frontend.prepare_chat(str(i), "m", chat)
    heard = TranscriptionInput(waveform(3.2 * (i + 1)), max_new_tokens=24)
    return frontend.prepare_transcription(str(i), "m", heard)
