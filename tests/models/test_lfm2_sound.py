"""LFM2.5-Audio's sound through the engine: the one-shot decode of its frames, however it is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from izwi.backends.torch.backend import torch_backend
from izwi.chat import ChatInput, ChatMessage, Role
from izwi.config import EngineConfig
from izwi.conversation import ConversationInput, SpokenTurn
from izwi.engine import Engine
from izwi.inputs import SpeechInput, TranscriptionInput
from izwi.log import Log
from izwi.recording import RequestRecorder
from izwi.recording_line import read_recording
from izwi.registry import Registry
from izwi.replay import replay
from izwi.request import Chunk, Request
from izwi.tracks import END
from izwi_models.lfm2_audio import FAMILY
from izwi_models.lfm2_audio.model import LFM2Audio
from tests.golden.make_recordings import run_alone
from tests.models.tiny_asr import sound
from tests.models.tiny_lfm2_audio import CALM, write_tiny_lfm2_audio

BACKEND = torch_backend("cpu", "float32")
FRAME = 1920
END_OF_AUDIO = 2048


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> LFM2Audio:
    torch.set_num_threads(1)
    folder = write_tiny_lfm2_audio(tmp_path_factory.mktemp("tiny") / "s2s", loudness=CALM)
    loaded = FAMILY.load(folder, BACKEND)
    assert isinstance(loaded, LFM2Audio)
    return loaded


def request(model: LFM2Audio, entries: int) -> Request:
    ask = ConversationInput(
        (SpokenTurn(Role.USER, ("Who is there?",)),), seed=4, max_new_tokens=entries
    )
    return model.prepare_conversation("a", "s2s", ask)


def run(model: LFM2Audio, asked: Request, log: Log | None = None, **config: object) -> list[Chunk]:
    settings = {"max_running": 4, "kv_bytes": 1 << 23, "page_size": 8, **config}
    engine = Engine({"s2s": model}, BACKEND, EngineConfig(**settings))  # type: ignore[arg-type]
    engine.submit(asked, log)
    chunks: list[Chunk] = []
    while engine.has_work:
        chunks += engine.step()
    assert chunks[-1].error is None
    assert chunks[-1].reason is not None
    return chunks


def sound_of(chunks: list[Chunk]) -> np.ndarray:
    return np.concatenate([chunk.pcm for chunk in chunks if chunk.pcm is not None])


def frames_of(chunks: list[Chunk]) -> list[list[int]]:
    frames = [ids for chunk in chunks for ids in chunk.of_track(1).tolist()]
    return [ids for ids in frames if ids[0] != END_OF_AUDIO]


def decoded(model: LFM2Audio, frames: list[list[int]]) -> np.ndarray:
    """In one call, the end included."""
    codec = model.tracks[1].codec
    assert codec is not None
    state = {
        name: torch.zeros(
            (1, *spec.shape), dtype=torch.int64 if spec.dtype == "int64" else torch.float32
        )
        for name, spec in codec.state.items()
    }
    with torch.no_grad():
        pcm, _ = codec.decode(torch.tensor([[*frames, [END] * 8]]), state)
    lag = codec.lookahead_samples
    whole: np.ndarray = pcm[0, lag : lag + len(frames) * FRAME].numpy()
    return whole


@pytest.mark.parametrize("entries", [7, 8, 18, 19, 20, 60])
@pytest.mark.parametrize("ramp", [(1, 2, 4, 8), (1,), (5,)])
def test_sound_is_the_one_shot_decode(
    model: LFM2Audio, entries: int, ramp: tuple[int, ...]
) -> None:
    """Answers that end with their first frame, inside a block, behind one, in the next text."""
    chunks = run(model, request(model, entries), chunk_ramp=ramp)
    frames, sound = frames_of(chunks), sound_of(chunks)
    assert frames
    assert len(sound) == len(frames) * FRAME
    np.testing.assert_allclose(sound, decoded(model, frames), rtol=0, atol=1e-5)
    assert np.abs(sound[-480:]).max() > 1e-4


def test_another_engine_goes_on_at_the_very_sample(model: LFM2Audio) -> None:
    asked = request(model, 40)
    chunks = run(model, asked)
    whole = sound_of(chunks)
    for cut in range(1, len(chunks) - 1):
        before = chunks[:cut]
        sounds = [chunk.pcm for chunk in before if chunk.pcm is not None]
        log = Log(
            np.concatenate([chunk.entries for chunk in before]),
            num_samples=sum(map(len, sounds)),
            num_chunks=len(sounds),
        )
        after = run(model, asked, log)
        heard = [*sounds, *(chunk.pcm for chunk in after if chunk.pcm is not None)]
        np.testing.assert_allclose(np.concatenate(heard), whole, rtol=0, atol=1e-5)


def test_what_it_said_and_wrote_can_be_recorded_and_replayed(tmp_path):
    """Speech, a transcript and a chat, from logs in which text and frames take turns."""
    registry = Registry(BACKEND)
    name = registry.load(str(write_tiny_lfm2_audio(tmp_path / "s2s")))
    model: Any = registry.model(name)
    heard = np.asarray(sound(0.8), np.float32)
    hello = (ChatMessage(Role.USER, "Hello."),)
    requests = [
        model.prepare_speech("s", name, SpeechInput("Good day.", seed=3, max_new_tokens=20)),
        model.prepare_transcription("t", name, TranscriptionInput(heard, temperature=1.0)),
        model.prepare_chat("c", name, ChatInput(hello, temperature=1.0, max_new_tokens=12)),
    ]
    engine = Engine(registry.models, BACKEND, EngineConfig(kv_bytes=1 << 24, page_size=8))
    recorder = RequestRecorder(tmp_path / "r.jsonl", registry, "here")
    for request in requests:
        run_alone(engine, request, recorder)
    recorder.close()
    lines = list(read_recording(tmp_path / "r.jsonl"))
    assert [len(line.entries) > 0 for line in lines] == [True] * 3
    assert {len(entry) for entry in lines[0].entries} == {1, 8}
    assert not list(replay(engine, registry, lines))
