"""Qwen3-TTS through the engine: every prompt form at once, codes and audio."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from izwi.backends.torch.backend import torch_backend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.speech import ReferenceClip, SpeechInput
from izwi.request.request import Chunk, Reason, Request
from izwi_models.qwen3_tts import FAMILY
from tests.models.loading import Checkpoint, load_checkpoint
from tests.models.test_tts import CLIP, FORMS, GOLDEN, KINDS, ask_of, clip_codes
from tests.models.tiny_tts import write_tiny_tts

FRAMES = 40  # of 71 that the goldens hold
# Steps too short for the longest prompts, so that these are run in chunks.
CONFIG = EngineConfig(max_running=16, kv_bytes=1 << 23, max_step_tokens=40)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(folder: Path, kind: str) -> tuple[Checkpoint, Engine]:
    backend = torch_backend("cpu", "float32")
    model = load_checkpoint(FAMILY, write_tiny_tts(folder, kind, int(GOLDEN["seed"])), backend)
    return model, Engine({"tiny": model.model}, backend, CONFIG)


def finish(engine: Engine, requests: list[Request]) -> dict[str, list[Chunk]]:
    """Run requests to their ends; the chunks of each."""
    chunks: dict[str, list[Chunk]] = defaultdict(list)
    for request in requests:
        engine.submit(request)
    for _ in range(1000):
        for chunk in engine.step():
            assert chunk.error is None, chunk.error
            chunks[chunk.request_id].append(chunk)
        if all(chunks[request.request_id][-1:] and _ended(chunks, request) for request in requests):
            return chunks
    raise AssertionError("the engine does not end")


def _ended(chunks: dict[str, list[Chunk]], request: Request) -> bool:
    return chunks[request.request_id][-1].reason is not None


def joined(chunks: list[Chunk]) -> tuple[np.ndarray, np.ndarray]:
    codes = np.concatenate([chunk.entries for chunk in chunks])
    return codes, np.concatenate([chunk.pcm for chunk in chunks if chunk.pcm is not None])


def decode(model: Checkpoint, codes: np.ndarray) -> np.ndarray:
    """The one-shot decode of (frames, codebooks)."""
    kinds = {"float": torch.float32, "int64": torch.int64}
    state = {
        name: torch.zeros((1, *spec.shape), dtype=kinds[spec.dtype])
        for name, spec in model.model.codec.state.items()
    }
    with torch.inference_mode():
        return np.asarray(
            model.model.codec.decode(torch.from_numpy(codes[None].astype(np.int64)), state)[0][0]
        )


# voice_design differs in its prompt only
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.slow) if kind != "base" else kind for kind in KINDS],
)
def test_every_form_at_once(tmp_path: Path, kind: str) -> None:
    model, engine = load(tmp_path, kind)
    names = [name for name, form in FORMS.items() if form["kind"] == kind]
    requests = []
    for name in names:
        ask = replace(ask_of(FORMS[name]), max_new_tokens=FRAMES + 1)
        requests.append(model.frontend.prepare_speech(name, "tiny", ask))
    chunks = finish(engine, requests)
    for name in names:
        codes, pcm = joined(chunks[name])
        assert (codes == GOLDEN[f"{name}_codes"][:FRAMES]).all(), name
        assert chunks[name][-1].reason is Reason.LENGTH
        frames = FORMS[name].get("clip", 0)
        heard = np.concatenate([clip_codes(frames), codes]) if frames else codes
        expected = decode(model, heard)[frames * model.model.codec.frame_samples :]
        assert pcm.shape == expected.shape
        assert np.abs(pcm - expected).max() < 1e-5, name


def test_a_gain_changes_the_audio_and_nothing_else(tmp_path: Path) -> None:
    model, engine = load(tmp_path, "base")
    ask = SpeechInput(text="Hi there", seed=4, max_new_tokens=12)
    plain = model.frontend.prepare_speech("plain", "tiny", ask)
    chunks = finish(engine, [plain, replace(plain, request_id="raised", gain=0.25)])
    codes, pcm = joined(chunks["plain"])
    raised_codes, raised_pcm = joined(chunks["raised"])
    assert (raised_codes == codes).all()
    assert np.abs(pcm).max() > 0
    assert (raised_pcm == pcm * np.float32(0.25)).all()


def test_a_clip_is_encoded_by_the_engine(tmp_path: Path) -> None:
    model, engine = load(tmp_path, "both")
    clip = ReferenceClip(CLIP, "in the rain")
    made = finish(engine, [model.frontend.prepare_voice("v", "tiny", clip.samples, clip.text)])
    voice = model.frontend.read_voice(made["v"][-1].encoded, clip.text)
    requests = [
        model.frontend.prepare_speech(
            name, "tiny", SpeechInput("Hello.", spoken, temperature=0.0, max_new_tokens=9)
        )
        for name, spoken in (("clip", clip), ("voice", voice))
    ]
    chunks = finish(engine, requests)
    from_clip, from_voice = (joined(chunks[name]) for name in ("clip", "voice"))
    assert (from_clip[0] == from_voice[0]).all()
    assert np.abs(from_clip[1] - from_voice[1]).max() < 1e-6
