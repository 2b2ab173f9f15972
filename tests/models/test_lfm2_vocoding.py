"""LFM2.5-Audio's audio through the engine equals one decode of its frames, however it is cut."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.inputs.conversation import (
    AnswerContent,
    AnswerLog,
    AudioContent,
    ConversationInput,
    SpokenTurn,
)
from izwi.inputs.speech import SpeechInput, TranscriptionInput
from izwi.model.tracks import END
from izwi.recording.line import ConversationLine, Line, read_recording
from izwi.recording.recorder import RequestRecorder
from izwi.recording.replay import replay
from izwi.request.log import Log
from izwi.request.request import Chunk, Reason, Request
from izwi_models.lfm2_audio import FAMILY
from tests.golden.make_recordings import run_alone
from tests.models.loading import Checkpoint, load_checkpoint
from tests.models.tiny_asr import waveform
from tests.models.tiny_lfm2_audio import CALM, write_tiny_lfm2_audio

BACKEND = torch_backend("cpu", "float32")
FRAME = 1920
END_OF_AUDIO = 2048


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Checkpoint:
    torch.set_num_threads(1)
    folder = write_tiny_lfm2_audio(tmp_path_factory.mktemp("tiny") / "s2s", loudness=CALM)
    return load_checkpoint(FAMILY, folder, BACKEND)


def request(model: Checkpoint, entries: int) -> Request:
    ask = ConversationInput(
        (SpokenTurn(Role.USER, ("Who is there?",)),), seed=4, max_new_tokens=entries
    )
    return model.frontend.prepare_conversation("a", "s2s", ask)


def run(model: Checkpoint, asked: Request, log: Log | None = None, **config: object) -> list[Chunk]:
    settings = {"max_running": 4, "kv_bytes": 1 << 23, "page_size": 8, **config}
    engine = Engine({"s2s": model.model}, BACKEND, EngineConfig(**settings))  # type: ignore[arg-type]
    engine.submit(asked, log)
    chunks: list[Chunk] = []
    while engine.has_work:
        chunks += engine.step()
    assert chunks[-1].error is None
    assert chunks[-1].reason is not None
    return chunks


def audio_of(chunks: list[Chunk]) -> np.ndarray:
    return np.concatenate([chunk.pcm for chunk in chunks if chunk.pcm is not None])


def frames_of(chunks: list[Chunk]) -> list[list[int]]:
    frames = [ids for chunk in chunks for ids in chunk.of_track(1).tolist()]
    return [ids for ids in frames if ids[0] != END_OF_AUDIO]


def decoded(model: Checkpoint, frames: list[list[int]]) -> np.ndarray:
    """In one call, the end included."""
    codec = model.model.tracks[1].codec
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


@pytest.mark.parametrize("entries", [7, 8, 18, 19, 20, 40])
@pytest.mark.parametrize("ramp", [(1, 2, 4, 8), pytest.param((1,), marks=pytest.mark.slow), (5,)])
def test_audio_equals_the_one_shot_decode(
    model: Checkpoint, entries: int, ramp: tuple[int, ...]
) -> None:
    """Answers that end with their first frame, inside a block, behind one, in the next text."""
    chunks = run(model, request(model, entries), chunk_ramp=ramp)
    frames, pcm = frames_of(chunks), audio_of(chunks)
    assert frames
    assert len(pcm) == len(frames) * FRAME
    np.testing.assert_allclose(pcm, decoded(model, frames), rtol=0, atol=1e-5)
    assert np.abs(pcm[-480:]).max() > 1e-4


@pytest.mark.parametrize("spacing", [pytest.param(1, marks=pytest.mark.slow), 9])
def test_another_engine_goes_on_at_the_very_sample(model: Checkpoint, spacing: int) -> None:
    """Behind each chunk; in `make test` behind every ninth."""
    asked = request(model, 40)
    chunks = run(model, asked)
    whole = audio_of(chunks)
    for cut in range(1, len(chunks) - 1, spacing):
        before = chunks[:cut]
        clips = [chunk.pcm for chunk in before if chunk.pcm is not None]
        log = Log(
            np.concatenate([chunk.entries for chunk in before]),
            chunk_samples=tuple(map(len, clips)),
        )
        after = run(model, asked, log)
        heard = [*clips, *(chunk.pcm for chunk in after if chunk.pcm is not None)]
        np.testing.assert_allclose(np.concatenate(heard), whole, rtol=0, atol=1e-5)


def talked(heard: np.ndarray, said: AnswerLog) -> ConversationInput:
    """A conversation of every kind of turn: text, audio, and an earlier answer."""
    turns = (
        SpokenTurn(Role.SYSTEM, ("Be brief.",)),
        SpokenTurn(Role.USER, ("Who is there?", AudioContent(heard))),
        SpokenTurn(Role.ASSISTANT, (AnswerContent(said),)),
        SpokenTurn(Role.USER, (AudioContent(heard[::2].copy()),)),
    )
    return ConversationInput(turns, seed=-4, audio_temperature=0.7, max_new_tokens=30)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> tuple[Registry, list[Line]]:
    """Speech, a transcript, a chat and conversations, from logs in which tracks take turns."""
    root = tmp_path_factory.mktemp("recorded")
    registry = Registry(BACKEND)
    name = registry.load(str(write_tiny_lfm2_audio(root / "s2s")))
    model: Any = registry.model(name)
    heard = np.asarray(waveform(0.8), np.float32)
    hello = (ChatMessage(Role.USER, "Hello."),)
    said = ((5,), (6,), (1, 2, 3, 4, 5, 6, 7, 8))
    in_text = ConversationInput((SpokenTurn(Role.USER, (AudioContent(heard),)),), False, seed=2)
    requests = [
        model.prepare_speech("s", name, SpeechInput("Good day.", seed=3, max_new_tokens=20)),
        model.prepare_transcription("t", name, TranscriptionInput(heard, temperature=1.0)),
        model.prepare_chat("c", name, ChatInput(hello, temperature=1.0, max_new_tokens=12)),
        model.prepare_conversation("v", name, talked(heard, said)),
        model.prepare_conversation("w", name, replace(in_text, temperature=1.0, max_new_tokens=9)),
    ]
    recorder = RequestRecorder(root / "r.jsonl", registry, "here")
    for request in requests:
        run_alone(an_engine(registry), request, recorder)
    stopped = replace(requests[3], request_id="x")
    run_until_audio(an_engine(registry), stopped, recorder)
    recorder.close()
    return registry, list(read_recording(root / "r.jsonl"))


def an_engine(registry: Registry) -> Engine:
    return Engine(registry.models, BACKEND, EngineConfig(kv_bytes=1 << 24, page_size=8))


def run_until_audio(engine: Engine, request: Request, recorder: RequestRecorder) -> None:
    """Run a request until its first audio has left, then stop it."""
    engine.submit(request)
    recorder.submitted(request)
    has_audio = False
    while not has_audio:
        for chunk in engine.step():
            recorder.chunk(chunk)
            has_audio = has_audio or chunk.pcm is not None
    for chunk in engine.abort(request.request_id):
        recorder.chunk(chunk)


def test_what_it_said_and_wrote_can_be_recorded_and_replayed(recorded):
    registry, lines = recorded
    assert [len(line.entries) > 0 for line in lines] == [True] * 6
    assert {len(entry) for entry in lines[0].entries} == {1, 8}
    assert not list(replay(an_engine(registry), registry, lines))


def test_a_line_of_a_conversation_has_text_and_audio(recorded):
    _, lines = recorded
    spoken, written, stopped = lines[3:]
    assert isinstance(spoken, ConversationLine)
    assert {len(entry) for entry in spoken.entries} == {1, 8}
    assert spoken.num_samples > 0
    assert spoken.text
    assert (written.num_samples, written.pcm_sha256) == (0, "")
    assert stopped.reason is Reason.ABORTED
    assert 0 < stopped.num_samples < spoken.num_samples
    (question, first) = spoken.ask.turns[1].parts
    assert question == "Who is there?"
    assert isinstance(first, AudioContent)
    np.testing.assert_array_equal(first.samples, np.asarray(waveform(0.8), np.float32))


@pytest.mark.parametrize(
    ("place", "changed", "what"),
    [
        (3, {"pcm_sha256": "0" * 64}, "audio"),
        (3, {"num_samples": 1920}, "audio"),
        (3, {"text": "something else"}, "text"),
        (4, {"text": "something else"}, "text"),
        (5, {"num_samples": 10**6}, "audio"),
    ],
)
def test_replay_reports_what_differs(recorded, place, changed, what):
    registry, lines = recorded
    line = msgspec.structs.replace(lines[place], **changed)
    (difference,) = replay(an_engine(registry), registry, [line])
    assert difference.what == what


def test_another_seed_gives_another_conversation(recorded):
    registry, lines = recorded
    ask = msgspec.structs.replace(lines[3].ask, seed=5)
    request = msgspec.structs.replace(lines[3].request, seed=5)
    line = msgspec.structs.replace(lines[3], ask=ask, request=request)
    (difference,) = replay(an_engine(registry), registry, [line])
    assert difference.what == "entries"
