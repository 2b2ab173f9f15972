"""The same code on a GPU: codes and text of the CPU in float32, and a run in bfloat16."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from izwi.backends.compilations import Compilation, cause, observers
from izwi.backends.torch.backend import TorchBackend, torch_backend
from izwi.backends.torch.captured.decode_graphs import DecodeGraphs
from izwi.config import WEIGHTS, EngineConfig
from izwi.engine.engine import Engine
from izwi.errors import IzwiError
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.inputs.conversation import AudioContent, ConversationInput, SpokenTurn
from izwi.inputs.images import ChatImage
from izwi.inputs.speech import ReferenceClip, SpeechInput, TranscriptionInput
from izwi.model.family import Family
from izwi.request.request import EncodeInput, Reason, Request
from izwi_models.lfm2_audio import FAMILY as S2S
from izwi_models.lfm2_audio.audio_config import MimiConfig
from izwi_models.qwen3_chat import FAMILY as CHAT
from izwi_models.qwen3_tts import FAMILY as TTS
from izwi_models.qwen3_vl import FAMILY as VL
from tests.models.kinds import KINDS, TEXTS, request_of, write_cloning
from tests.models.loading import Checkpoint, load_checkpoint
from tests.models.tiny_asr import waveform
from tests.models.tiny_lfm2_audio import MIMI, write_tiny_lfm2_audio
from tests.models.tiny_vl import drawn_image, write_tiny_vl

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def run(
    family: Family,
    folder: Path,
    device: str,
    dtype: str,
    weights: str = "auto",
    attention: str = "auto",
) -> dict[str, tuple[list, np.ndarray]]:
    """Entries and audio of three requests in one engine, greedy and sampled."""
    backend = torch_backend(device, dtype, weights, attention)
    frontend, model = load_checkpoint(family, folder, backend)
    engine = Engine({"m": model}, backend, EngineConfig(kv_bytes=1 << 24))
    requests = [request_of(family, frontend, i) for i in range(len(TEXTS))]
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
def test_captured_torch_attention_equals_the_cpu(tmp_path: Path, name: str) -> None:
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
def test_captured_steps_wait_for_their_results_only(tmp_path: Path, name: str) -> None:
    family, folder = KINDS[name]
    backend = torch_backend("cuda", "bfloat16")
    frontend, model = load_checkpoint(family, folder(tmp_path / name), backend)
    engine = Engine({"m": model}, backend, EngineConfig(kv_bytes=1 << 24, max_running=8))
    for i in range(len(TEXTS)):
        engine.submit(request_of(family, frontend, i))
    for _ in range(6):  # prompts, and whatever is captured at its first use
        engine.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(6):
            assert all(chunk.error is None for chunk in engine.step())
    finally:
        torch.cuda.set_sync_debug_mode("default")


# -- speech to speech ------------------------------------------------------------------------
def s2s_requests(frontend: Any) -> list[Request]:
    """Both modes, greedy and sampled, with audio and without."""
    how: list[tuple[Any, dict[str, Any]]] = [
        ("Hello there.", {"max_new_tokens": 60, "temperature": 0.0}),
        (AudioContent(waveform(1.4)), {"max_new_tokens": 48, "temperature": 0.0, "seed": 1}),
        ("The third one.", {"max_new_tokens": 40, "temperature": 0.9, "seed": 2}),
        ("No sound.", {"max_new_tokens": 20, "speaks": False}),
    ]
    asks = [ConversationInput((SpokenTurn(Role.USER, (part,)),), **more) for part, more in how]
    made = [frontend.prepare_conversation(str(n), "m", ask) for n, ask in enumerate(asks)]
    ask = SpeechInput("Say this aloud.", max_new_tokens=50, seed=7)
    return [*made, frontend.prepare_speech("speech", "m", ask)]


def s2s(
    folder: Path, device: str, dtype: str, graphs: bool = True, weights: str = "auto"
) -> dict[str, tuple[list, np.ndarray]]:
    """Entries and audio of these requests, in one engine, one after the other."""
    backend = torch_backend(device, dtype, weights)
    frontend, model = load_checkpoint(S2S, folder, backend)
    config = EngineConfig(kv_bytes=1 << 24, max_running=8, graphs=graphs)
    engine = Engine({"m": model}, backend, config)
    requests = s2s_requests(frontend)
    made: dict[str, tuple[list, list]] = {request.request_id: ([], []) for request in requests}
    steps = 0
    while requests or engine.has_work:
        if requests and steps % 4 == 0:
            engine.submit(requests.pop(0))
        steps += 1
        for chunk in engine.step():
            assert chunk.reason is not Reason.ERROR, chunk.error
            entries, pcm = made[chunk.request_id]
            entries += chunk.entries.tolist()
            if chunk.pcm is not None:
                pcm.append(chunk.pcm)
    return {
        name: (entries, np.concatenate([*pcm, np.zeros(0)]))
        for name, (entries, pcm) in made.items()
    }


@pytest.fixture(params=["detokenizer", "mimi"])
def s2s_folder(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    if request.param == "mimi":
        small = partial(MimiConfig, **MIMI)
        monkeypatch.setattr("izwi_models.lfm2_audio.model.MimiConfig", small)
    return write_tiny_lfm2_audio(tmp_path / "s2s", wide=True, mimi=request.param == "mimi")


@pytest.mark.parametrize("graphs", [True, False], ids=["captured", "plain"])
def test_speech_to_speech_equals_the_cpu(s2s_folder: Path, graphs: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    cpu, gpu = (s2s(s2s_folder, device, "float32", graphs) for device in ("cpu", "cuda"))
    for name, (entries, pcm) in cpu.items():
        assert gpu[name][0] == entries, name
        np.testing.assert_allclose(gpu[name][1], pcm, atol=1e-4)


@pytest.mark.parametrize("weights", ["auto", "int8"])
def test_speech_to_speech_runs_in_bfloat16(s2s_folder: Path, weights: str) -> None:
    for entries, pcm in s2s(s2s_folder, "cuda", "bfloat16", weights=weights).values():
        assert entries
        assert np.isfinite(pcm).all()


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """Fail if anything is compiled or captured meanwhile."""
    late: list[str] = []

    def noted(one: Compilation) -> None:
        late.append(f"{one.kind}: {one.name} ({' > '.join(cause())})")

    observers.append(noted)
    try:
        yield
    finally:
        observers.remove(noted)
    assert not late, "\n".join(late)


def step(engine: Engine) -> None:
    """Run one step in which no request fails."""
    for chunk in engine.step():
        assert chunk.reason is not Reason.ERROR, chunk.error


def test_speech_to_speech_captures_nothing_while_serving(s2s_folder: Path) -> None:
    backend = torch_backend("cuda", "bfloat16")
    frontend, model = load_checkpoint(S2S, s2s_folder, backend)
    config = EngineConfig(kv_bytes=1 << 26, max_running=16)
    engine = Engine({"m": model}, backend, config)
    graphs = engine._workers["m"].runner._graphs
    assert graphs is not None
    assert isinstance(graphs.decodes, DecodeGraphs)
    rng = random.Random(3)
    with nothing_compiled():
        for number in range(30):
            part: Any = rng.choice(
                ["word " * rng.randint(1, 120), AudioContent(waveform(rng.uniform(0.1, 20)))]
            )
            ask = ConversationInput(
                (SpokenTurn(Role.USER, (part,)),),
                seed=number,
                temperature=rng.choice([None, 0.0, 0.7]),
                audio_top_k=rng.choice([None, 4, 100]),
                max_new_tokens=rng.choice([1, 7, 60, 200]),
            )
            engine.submit(frontend.prepare_conversation(str(number), "m", ask))
            for _ in range(rng.choice([0, 1, 5, 30])):
                step(engine)
        while engine.has_work:
            step(engine)


def clips_of(frontend: Any) -> list[EncodeInput]:
    """Reference clips of unequal lengths: for either encoder more than one batch of a bucket."""
    pieces: list[EncodeInput] = []
    for n, seconds in enumerate((0.5, 1.0, 1.01, *np.linspace(2.1, 3.9, 9), 5.3, 17.0, 30.0, 31.0)):
        samples = waveform(1.5 * seconds, n)  # made at 16 kHz, read at 24 kHz
        request = frontend.prepare_voice(str(n), "m", samples, "what it says")
        pieces += request.prompt.encode_inputs
    return pieces


def encoded(loaded: Checkpoint, ops: Any, graphs: bool) -> list[np.ndarray]:
    """What an engine's runner gives for the clips, captured or not, in the order of `clips_of`."""
    config = EngineConfig(kv_bytes=1 << 24, max_running=8, graphs=graphs)
    runner = Engine({"m": loaded.model}, TorchBackend(ops), config)._workers["m"].runner
    with torch.inference_mode():
        return [ops.numpy(result) for result in runner._encoders._encode(clips_of(loaded.frontend))]


@pytest.mark.parametrize("graphs", [True, False], ids=["captured", "together"])
def test_voices_are_those_of_the_cpu(tmp_path: Path, graphs: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    folder = write_cloning(tmp_path / "base")
    backends = [torch_backend(device, "float32") for device in ("cpu", "cuda")]
    cpu, gpu = (load_checkpoint(TTS, folder, backend) for backend in backends)
    clips = clips_of(cpu.frontend)
    expected = [backends[0].ops.numpy(x) for clip in clips for x in cpu.model.encode([clip])]
    for found, alone in zip(encoded(gpu, backends[1].ops, graphs), expected, strict=True):
        assert found.shape == alone.shape
        if alone.ndim == 1:
            np.testing.assert_allclose(found, alone, rtol=0, atol=1e-4 * np.abs(alone).max())
        else:  # a tie that falls otherwise changes the rest of its frame
            assert (found != alone).any(-1).mean() < 0.05


def test_voices_are_captured(tmp_path: Path) -> None:
    """Only the clip of 31 s is left to the model, and bfloat16 makes vectors that are alike.

    Before it each encoder runs once at the start, so that its kernels are there.
    """
    backend = torch_backend("cuda", "bfloat16")
    loaded = load_checkpoint(TTS, write_cloning(tmp_path / "base"), backend)
    model = loaded.model
    plain, left = model.encode, list[str]()

    def watched(inputs: Any) -> Any:
        left.extend(piece.kind for piece in inputs)
        return plain(inputs)

    model.encode = watched
    found = encoded(loaded, backend.ops, graphs=True)
    assert sorted(left) == ["codes", "codes", "speaker", "speaker"]
    for piece, vector in zip(clips_of(loaded.frontend), found, strict=True):
        if piece.kind == "speaker":
            (alone,) = (backend.ops.numpy(x) for x in plain([piece]))
            cosine = vector @ alone / np.linalg.norm(vector) / np.linalg.norm(alone)
            assert cosine > 0.999


def drawn_request(family: Family, frontend: Any, rng: random.Random, number: int) -> Request | None:
    """Something that users may ask for, of any length; None where the model refuses it."""
    words = ("one", "harbour", "lantern", "seven", "and", "quietly", "of")
    text = " ".join(rng.choices(words, k=int(2 ** rng.uniform(0, 9)))) + "."
    how: dict[str, Any] = {
        "temperature": rng.choice([0.0, 0.6, 1.3]),
        "seed": number,
        "max_new_tokens": rng.choice([1, 7, 60, 400]),
    }
    if family in (TTS, CHAT):
        how |= {"top_k": rng.choice([None, 0, 1, 50, 65]), "top_p": rng.choice([None, 0.8, 1.0])}
    try:
        if family is TTS:
            samples = waveform(1.5 * rng.uniform(0.5, 30.0), number)
            clip = ReferenceClip(samples, rng.choice([None, text[:80]]))
            ask = SpeechInput(text, voice=clip if frontend.can_clone else None, **how)
            return frontend.prepare_speech(f"{number}", "m", ask)
        if family is CHAT:
            chat = ChatInput((ChatMessage(Role.USER, text),), **how)
            return frontend.prepare_chat(f"{number}", "m", chat)
        samples = waveform(rng.choice([rng.uniform(0.1, 1.0), rng.uniform(1.0, 70.0)]), number)
        heard = TranscriptionInput(samples, logprobs=rng.random() < 0.3, **how)
        return frontend.prepare_transcription(f"{number}", "m", heard)
    except IzwiError:
        return None


@pytest.mark.parametrize("weights", ["auto", "int8"])
@pytest.mark.parametrize("name", KINDS)
def test_serving_compiles_and_captures_nothing(tmp_path: Path, name: str, weights: str) -> None:
    family, folder = KINDS[name]
    backend = torch_backend("cuda", "bfloat16", weights)
    frontend, model = load_checkpoint(family, folder(tmp_path / name), backend)
    config = EngineConfig(kv_bytes=1 << 26, max_running=16)
    engine = Engine({"m": model}, backend, config)
    rng = random.Random(7)
    with nothing_compiled():
        for number in range(60):
            request = drawn_request(family, frontend, rng, number)
            if request is not None:
                engine.submit(request)
            for _ in range(rng.choice([0, 0, 1, 5, 40])):
                step(engine)
        while engine.has_work:
            step(engine)


@pytest.mark.parametrize("weights", ["auto", "int8"])
def test_the_first_image_compiles_nothing(tmp_path: Path, weights: str) -> None:
    backend = torch_backend("cuda", "bfloat16", weights)
    frontend, model = load_checkpoint(VL, write_tiny_vl(tmp_path / "vl"), backend)
    engine = Engine({"m": model}, backend, EngineConfig(kv_bytes=1 << 26, max_running=16))
    sizes = ((32, 32), (64, 48), (128, 128), (128, 16), (112, 96), (80, 64))
    with nothing_compiled():
        for number, (width, height) in enumerate(sizes):
            images = (ChatImage(0, pixels=drawn_image(width, height, number)),)
            said = ChatMessage(Role.USER, "What is this? " * (1 + 3 * number), images=images)
            chat = ChatInput((said,), temperature=0.0, max_new_tokens=5)
            engine.submit(frontend.prepare_chat(f"{number}", "m", chat))
            for _ in range(number):
                step(engine)
        while engine.has_work:
            step(engine)


def test_a_second_engine_opens_after_the_first_ones_graphs_are_freed(tmp_path: Path) -> None:
    """A server that unloads its last model, and loads another."""
    family, folder = KINDS["chat"]
    backend = torch_backend("cuda", "bfloat16")
    frontend, model = load_checkpoint(family, folder(tmp_path / "chat"), backend)
    for _ in range(3):
        engine = Engine({"m": model}, backend, EngineConfig(kv_bytes=1 << 24, max_running=4))
        engine.submit(request_of(family, frontend, 0))
        while engine.has_work:
            step(engine)
        del engine
        gc.collect()
