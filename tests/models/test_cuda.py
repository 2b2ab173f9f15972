"""The same code on a GPU: codes and text of the CPU in float32, and a run in bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from izwi.chat import ChatInput, ChatMessage, Role
from izwi.config import WEIGHTS, EngineConfig
from izwi.engine import Engine
from izwi.model import Family
from izwi.request import Reason, Request, SpeechInput, TranscriptionInput
from izwi.runner.device import torch_backend
from izwi_models.qwen3_asr.model import FAMILY as ASR
from izwi_models.qwen3_chat.model import FAMILY as CHAT
from izwi_models.qwen3_tts import FAMILY as TTS
from tests.models.tiny_asr import sound, write_tiny_asr
from tests.models.tiny_chat import UNTIED, write_tiny_chat
from tests.models.tiny_tts import write_tiny_tts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
TEXTS = ("Hello there.", "The second one is a little longer, 123.", "and a third")


def write_untied(folder: Path) -> Path:
    return write_tiny_chat(folder, UNTIED)


KINDS = {
    "tts": (TTS, write_tiny_tts),
    "asr": (ASR, write_tiny_asr),
    "chat": (CHAT, write_tiny_chat),
    "chat, untied": (CHAT, write_untied),
}


def request_of(family: Family, model: Any, i: int) -> Request:
    """Greedy but for the second one where the family samples."""
    sampled = None if i == 1 else 0
    if family is TTS:
        ask = SpeechInput(TEXTS[i], temperature=sampled, seed=i, max_new_tokens=40)
        return model.prepare_speech(str(i), "m", ask)
    if family is CHAT:
        said = (ChatMessage(Role.USER, TEXTS[i]),)
        chat = ChatInput(said, temperature=sampled, seed=i, max_new_tokens=40)
        return model.prepare_chat(str(i), "m", chat)
    heard = TranscriptionInput(sound(3.2 * (i + 1)), max_new_tokens=24)
    return model.prepare_transcription(str(i), "m", heard)


def run(
    family: Family,
    folder: Path,
    device: str,
    dtype: str,
    weights: str = "auto",
    attention: str = "auto",
) -> dict[str, tuple[list, np.ndarray]]:
    """Entries and sound of three requests in one engine, greedy and sampled."""
    backend = torch_backend(device, dtype, weights, attention)
    model = family.load(folder, backend)
    engine = Engine({"m": model}, backend.ops, EngineConfig(kv_bytes=1 << 24))
    requests = [request_of(family, model, i) for i in range(len(TEXTS))]
    for request in requests:
        engine.submit(request)
    entries: dict[str, list] = {request.request_id: [] for request in requests}
    pcm: dict[str, list] = {request.request_id: [] for request in requests}
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.reason is not Reason.ERROR, chunk.error
            entries[chunk.request_id] += chunk.entries.tolist()
            if chunk.pcm is not None:
                pcm[chunk.request_id].append(chunk.pcm)
    return {name: (entries[name], np.concatenate([*pcm[name], [0]])) for name in entries}


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", KINDS)
def test_float32_equals_the_cpu(tmp_path: Path, name: str, weights: str) -> None:
    family, folder = KINDS[name]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    checkpoint = folder(tmp_path / name)
    cpu, gpu = (run(family, checkpoint, device, "float32", weights) for device in ("cpu", "cuda"))
    for request_id, (entries, pcm) in cpu.items():
        assert gpu[request_id][0] == entries
        np.testing.assert_allclose(gpu[request_id][1], pcm, atol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_torch_attends_in_recorded_steps_as_on_the_cpu(tmp_path: Path, name: str) -> None:
    family, folder = KINDS[name]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    checkpoint = folder(tmp_path / name)
    cpu = run(family, checkpoint, "cpu", "float32")
    gpu = run(family, checkpoint, "cuda", "float32", attention="torch")
    for request_id, (entries, pcm) in cpu.items():
        assert gpu[request_id][0] == entries
        np.testing.assert_allclose(gpu[request_id][1], pcm, atol=1e-4)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", KINDS)
def test_bfloat16_runs(tmp_path: Path, name: str, weights: str) -> None:
    family, folder = KINDS[name]
    checkpoint = folder(tmp_path / name)
    for entries, pcm in run(family, checkpoint, "cuda", "bfloat16", weights).values():
        assert entries
        assert np.isfinite(pcm).all()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("name", KINDS)
def test_recorded_steps_wait_for_nothing_but_their_results(tmp_path: Path, name: str) -> None:
    family, folder = KINDS[name]
    backend = torch_backend("cuda", "bfloat16")
    model = family.load(folder(tmp_path / name), backend)
    engine = Engine({"m": model}, backend.ops, EngineConfig(kv_bytes=1 << 24, max_running=8))
    for i in range(len(TEXTS)):
        engine.submit(request_of(family, model, i))
    for _ in range(6):  # prompts, and whatever is recorded at its first use
        engine.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(6):
            assert all(chunk.error is None for chunk in engine.step())
    finally:
        torch.cuda.set_sync_debug_mode("default")
