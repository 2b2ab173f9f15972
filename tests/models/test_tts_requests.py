"""Valid speech requests, how text is cut, and errors of broken checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.backends.torch.backend import torch_backend
from izwi.errors import CheckpointError, InvalidAudio, InvalidRequest, TooLarge, VoiceNotFound
from izwi.inputs.speech import ReferenceClip, SpeechInput, TextMode, VoicePrompt
from izwi.request.request import Request
from izwi_models.qwen3_tts import FAMILY
from izwi_models.qwen3_tts.pieces import split_text
from izwi_models.qwen3_tts.prompt import NOTHING, SPEAKER, SpeechPrompt
from tests.models.loading import Checkpoint, load_checkpoint
from tests.models.tiny_tts import tiny_config, write_json, write_tiny_tts

LoadModel = Callable[[str], Checkpoint]
PAD, EOS_TEXT = 310, 312
NOISE = np.random.Generator(np.random.PCG64(2)).standard_normal(24000).astype(np.float32) * 0.1


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> LoadModel:
    loaded: dict[str, Checkpoint] = {}

    def load_once(kind: str) -> Checkpoint:
        if kind not in loaded:
            folder = write_tiny_tts(tmp_path_factory.mktemp(kind), kind)
            loaded[kind] = load_checkpoint(FAMILY, folder, torch_backend("cpu", "float32"))
        return loaded[kind]

    return load_once


def prepared(model: Checkpoint, text: str = "Hello there.", **ask: Any) -> Request:
    return model.frontend.prepare_speech("id", "tiny", SpeechInput(text, **ask))


def prompt_of(request: Request) -> SpeechPrompt:
    assert isinstance(request.prompt, SpeechPrompt)
    return request.prompt


def voice(hidden: int = 64, frames: int = 3, text: str | None = "hi") -> VoicePrompt:
    return VoicePrompt(np.ones(hidden, np.float32), np.ones((frames, 16), np.int64), text)


@pytest.mark.parametrize(
    ("kind", "ask", "wrong", "param"),
    [
        ("base", {"text": ""}, InvalidRequest, "input"),
        ("base", {"text": " \n\t\u3000"}, InvalidRequest, "input"),
        ("base", {"voice": "ryan"}, VoiceNotFound, "voice"),
        ("custom_voice", {"voice": "nobody"}, VoiceNotFound, "voice"),
        ("custom_voice", {"voice": ""}, VoiceNotFound, "voice"),
        ("custom_voice", {"voice": voice()}, InvalidRequest, "voice"),
        ("custom_voice", {"voice": ReferenceClip(NOISE)}, InvalidRequest, "voice"),
        ("base", {"voice": voice(hidden=32)}, InvalidRequest, "voice"),
        ("base", {"voice": voice(frames=0)}, InvalidRequest, "voice"),
        ("base", {"voice": voice(text=" ")}, InvalidRequest, "ref_text"),
        (
            "base",
            {"voice": VoicePrompt(np.ones(64, np.float32), np.full((2, 16), 64), "hi")},
            InvalidRequest,
            "voice",
        ),
        (
            "base",
            {"voice": VoicePrompt(np.full(64, np.nan, np.float32))},
            InvalidRequest,
            "voice",
        ),
        ("base", {"voice": ReferenceClip(NOISE[:11999])}, InvalidAudio, "ref_audio"),
        ("base", {"voice": ReferenceClip(NOISE[:, None])}, InvalidAudio, "ref_audio"),
        ("base", {"voice": ReferenceClip(NOISE * 0)}, InvalidAudio, "ref_audio"),
        ("base", {"voice": ReferenceClip(NOISE * np.inf)}, InvalidAudio, "ref_audio"),
        ("base", {"voice": ReferenceClip(np.tile(NOISE, 121))}, TooLarge, "ref_audio"),
        ("base", {"language": "klingon"}, InvalidRequest, "language"),
        ("base", {"temperature": -0.1}, InvalidRequest, "temperature"),
        ("base", {"temperature": math.nan}, InvalidRequest, "temperature"),
        ("base", {"temperature": math.inf}, InvalidRequest, "temperature"),
        ("base", {"top_k": -1}, InvalidRequest, "top_k"),
        ("base", {"top_p": 0.0}, InvalidRequest, "top_p"),
        ("base", {"top_p": 1.01}, InvalidRequest, "top_p"),
        ("base", {"max_new_tokens": 1}, InvalidRequest, "max_new_tokens"),
        ("base", {"text": "word " * 2000}, TooLarge, "input"),
    ],
)
def test_invalid_speech_requests_name_their_parameter(
    load: LoadModel, kind: str, ask: dict[str, Any], wrong: type[InvalidRequest], param: str
) -> None:
    with pytest.raises(wrong) as caught:
        prepared(load(kind), **ask)
    assert caught.value.param == param


def test_defaults_come_from_the_checkpoint(load: LoadModel) -> None:
    request = prepared(load("custom_voice"))
    assert (request.sampling.temperature, request.sampling.top_k) == (0.9, 50)
    assert request.sampling.repetition_penalty == 1.05
    assert request.codebook_sampling.repetition_penalty == 1.0
    assert request.codebook_sampling.temperature == 0.9
    assert request.stop_ids == (166,)
    assert request.min_entries == 2
    assert 1081 in prompt_of(request).codec  # the first speaker


def test_overrides_are_the_talkers_and_zero_is_greedy_everywhere(load: LoadModel) -> None:
    request = prepared(load("base"), temperature=0.5, top_k=3, top_p=0.7)
    assert (request.sampling.temperature, request.sampling.top_k) == (0.5, 3)
    assert request.sampling.top_p == 0.7
    assert (request.codebook_sampling.temperature, request.codebook_sampling.top_k) == (0.9, 50)
    request = prepared(load("base"), temperature=0.0)
    assert request.sampling.temperature == request.codebook_sampling.temperature == 0.0
    assert request.sampling.repetition_penalty == 1.05


def test_length_is_bounded(load: LoadModel) -> None:
    model = load("base")
    assert prepared(model, max_new_tokens=2).max_entries == 1
    assert prepared(model, max_new_tokens=12).max_entries == 11
    text = "Hello"  # five tokens here
    assert prepared(model, text).max_entries == 250 + 12 * 5
    long = prepared(model, "x" * 1000, max_new_tokens=5000)
    assert long.max_entries == 2048 - long.prompt.num_positions


def test_text_mode_defaults_to_the_references(load: LoadModel) -> None:
    cloned = prepared(load("both"), voice=voice())
    spoken = prepared(load("both"), voice="RYAN")
    assert prompt_of(cloned).text_track[-1:].tolist() in ([], [EOS_TEXT])
    assert EOS_TEXT in prompt_of(spoken).text
    assert len(prompt_of(spoken).text_track) == 0
    streamed = prepared(load("both"), voice="ryan", text_mode=TextMode.STREAMING)
    assert EOS_TEXT not in prompt_of(streamed).text
    assert prompt_of(streamed).text_track[-1] == EOS_TEXT


def test_a_clip_is_measured_before_it_is_encoded(load: LoadModel) -> None:
    for samples, frames in ((12000, 7), (13440, 7), (13441, 8)):
        request = prepared(load("base"), voice=ReferenceClip(NOISE[:samples], "hi"))
        assert prompt_of(request).num_reference_frames == frames
        assert [piece.kind for piece in request.prompt.encode_inputs] == ["speaker", "codes"]
    request = prepared(load("base"), voice=ReferenceClip(NOISE, "  "))
    assert [piece.kind for piece in request.prompt.encode_inputs] == ["speaker"]
    assert prompt_of(request).num_reference_frames == 0
    assert SPEAKER in prompt_of(request).codec


def test_instructions_reach_models_that_were_trained_on_them(
    load: LoadModel, tmp_path: Path
) -> None:
    def reported(model: Checkpoint) -> bool:
        prompt = prompt_of(prepared(model, instruct="Softly."))
        return bool((prompt.codec[:4] == NOTHING).all())  # else the role's three alone

    assert reported(load("custom_voice"))
    assert reported(load("voice_design"))
    assert not reported(load("base"))
    small = write_tiny_tts(tmp_path, "custom_voice")
    write_json(small / "config.json", tiny_config("custom_voice") | {"tts_model_size": "0b6"})
    assert not reported(load_checkpoint(FAMILY, small, torch_backend("cpu", "float32")))


def test_languages_by_name_or_code(load: LoadModel) -> None:
    model = load("custom_voice")
    assert model.frontend.languages == ("chinese", "english", "german")
    for asked, index in (("English", 66), ("en", 66), ("zh", 71), ("sichuan_dialect", 78)):
        assert index in prompt_of(prepared(model, voice="ryan", language=asked)).codec
    assert 78 in prompt_of(prepared(model, voice="eric")).codec  # speaks his dialect
    assert 78 in prompt_of(prepared(model, voice="eric", language="zh")).codec
    assert 78 not in prompt_of(prepared(model, voice="eric", language="en")).codec


@given(st.text(alphabet="ab .,!?\n。，é漢\"'", max_size=120), st.integers(1, 40))
def test_pieces_keep_every_character_in_order(text: str, limit: int) -> None:
    pieces = split_text(text, limit)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    if len(pieces) > 1:
        assert all(piece and len(piece) <= limit for piece in pieces)
        assert all(piece == piece.strip() for piece in pieces)


@given(st.lists(st.text(alphabet="abc,.", min_size=1, max_size=9), min_size=1, max_size=30))
def test_pieces_keep_words_that_fit(words: list[str]) -> None:
    pieces = split_text(" ".join(words), 20)
    found = [word for piece in pieces for word in piece.split()]
    assert found == words


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("One. Two.", ["One. Two."]),
        ("First one. Second one. Third.", ["First one.", "Second one.", "Third."]),
        ('He said "no." Then left.', ['He said "no."', "Then left."]),
        ("It costs 3.14 or so, today", ["It costs 3.14 or so,", "today"]),
        ("no marks at all in this text", ["no marks at all in", "this text"]),
        (
            "今天天气很好。我们去公园散步吧，好吗？大家都来玩吧",
            ["今天天气很好。我们去公园散步吧，好吗？", "大家都来玩吧"],
        ),
        ("a" * 25, ["a" * 20, "a" * 5]),
    ],
)
def test_pieces_end_where_a_speaker_would_pause(text: str, pieces: list[str]) -> None:
    limit = 20 if "First" not in text else 14
    assert split_text(text, limit) == pieces


def test_a_checkpoint_may_limit_its_text(load: LoadModel, tmp_path: Path) -> None:
    assert load("base").frontend.split_text("One. " * 100 + "\n") == [("One. " * 100).strip()]
    folder = write_tiny_tts(tmp_path, "base")
    write_json(folder / "config.json", tiny_config("base") | {"max_text_characters": 9})
    model = load_checkpoint(FAMILY, folder, torch_backend("cpu", "float32"))
    assert model.frontend.split_text("One. Two. Three.") == ["One. Two.", "Three."]


def _without(values: dict[str, Any], key: str) -> dict[str, Any]:
    head, _, rest = key.partition(".")
    if not rest:
        return {name: value for name, value in values.items() if name != head}
    return values | {head: _without(values[head], rest)}


@pytest.mark.parametrize(
    "key",
    [
        "talker_config",
        "tts_model_type",
        "assistant_token_id",
        "talker_config.codec_think_id",
        "talker_config.text_vocab_size",
        "talker_config.code_predictor_config.head_dim",
        "speaker_encoder_config.enc_dim",
    ],
)
def test_the_error_names_a_missing_key(tmp_path: Path, key: str) -> None:
    folder = write_tiny_tts(tmp_path, "base")
    write_json(folder / "config.json", _without(tiny_config("base"), key))
    with pytest.raises(CheckpointError, match=key.rpartition(".")[2]):
        load_checkpoint(FAMILY, folder, torch_backend("cpu", "float32"))


def _edit(folder: Path, name: str, change: dict[str, Any]) -> None:
    path = folder / name
    write_json(path, json.loads(path.read_text()) | change)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", {"speaker_encoder_config": {"enc_dim": 32}}, "enc_dim"),
        ("config.json", {"tts_eos_token_id": 9999}, "tts_eos_token_id is 9999"),
        ("config.json", {"speaker_encoder_config": None}, "unexpected tensor 'speaker_encoder"),
        ("generation_config.json", {"top_k": "many"}, "top_k"),
        ("speech_tokenizer/config.json", {"encoder_config": {}}, "encoder_config"),
    ],
)
def test_inconsistent_checkpoint_is_refused_by_name(
    tmp_path: Path, name: str, change: dict[str, Any], message: str
) -> None:
    folder = write_tiny_tts(tmp_path, "base")
    _edit(folder, name, change)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(FAMILY, folder, torch_backend("cpu", "float32"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"spk_id": {"vivian": 5000}}, "spk_id.vivian is 5000"),
    ],
)
def test_a_talker_that_is_not_computed_is_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = write_tiny_tts(tmp_path, "custom_voice")
    _edit(
        folder,
        "config.json",
        {"talker_config": tiny_config("custom_voice")["talker_config"] | change},
    )
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(FAMILY, folder, torch_backend("cpu", "float32"))


def test_a_speaker_may_be_spelled_in_any_case(tmp_path: Path) -> None:
    folder = write_tiny_tts(tmp_path, "custom_voice")
    talker = tiny_config("custom_voice")["talker_config"]
    index = talker["spk_id"].pop("ryan")
    talker["spk_id"]["Ryan"] = index
    _edit(folder, "config.json", {"talker_config": talker})
    model = load_checkpoint(FAMILY, folder, torch_backend("cpu", "float32"))
    assert index in prompt_of(prepared(model, "Hi", voice="rYAN")).codec


def test_the_codec_must_speak_the_talkers_codes(tmp_path: Path) -> None:
    folder = write_tiny_tts(tmp_path, "base")
    talker = tiny_config("base")["talker_config"] | {"vocab_size": 3072}
    _edit(folder, "config.json", {"talker_config": talker})
    with pytest.raises(CheckpointError, match="codebooks of 64"):
        load_checkpoint(FAMILY, folder, torch_backend("cpu", "float32"))


def test_generation_config_falls_back_as_the_reference_does(tmp_path: Path) -> None:
    folder = write_tiny_tts(tmp_path, "base")
    write_json(folder / "generation_config.json", {"do_sample": False})
    model = load_checkpoint(FAMILY, folder, torch_backend("cpu", "float32"))
    request = prepared(model, "x" * 300)
    assert request.sampling.temperature == 0.0
    assert request.codebook_sampling.temperature == 0.9
    assert request.max_entries == min(2047, 2048 - request.prompt.num_positions)


def test_dialects_must_be_languages(tmp_path: Path) -> None:
    folder = write_tiny_tts(tmp_path, "custom_voice")
    talker = tiny_config("custom_voice")["talker_config"]
    talker["spk_is_dialect"]["eric"] = "bavarian_dialect"
    _edit(folder, "config.json", {"talker_config": talker})
    with pytest.raises(CheckpointError, match="eric"):
        load_checkpoint(FAMILY, folder, torch_backend("cpu", "float32"))


def test_a_speaker_is_raised_by_the_gain_of_its_checkpoint(tmp_path: Path) -> None:
    folder = write_tiny_tts(tmp_path, "both")
    _edit(folder, "config.json", {"spk_gain_db": {"eric": 6.0, "vivian": -20.0}})
    model = load_checkpoint(FAMILY, folder, torch_backend("cpu", "float32"))
    assert prepared(model, "Hi", voice="Eric").gain == pytest.approx(1.9953, abs=1e-4)
    assert prepared(model, "Hi", voice="vivian").gain == pytest.approx(0.1)
    assert prepared(model, "Hi", voice="ryan").gain == 1.0
    assert prepared(model, "Hi", voice=voice(frames=40)).gain == 1.0


@pytest.mark.parametrize("gains", [{"nobody": 1.0}, {"eric": 25.0}, {"eric": -1e999}])
def test_gains_are_of_speakers_and_bounded(tmp_path: Path, gains: dict[str, float]) -> None:
    folder = write_tiny_tts(tmp_path, "custom_voice")
    _edit(folder, "config.json", {"spk_gain_db": gains})
    with pytest.raises(CheckpointError, match=r"spk_gain_db (names|raises)"):
        load_checkpoint(FAMILY, folder, torch_backend("cpu", "float32"))


def test_pad_goes_beside_a_clip_longer_than_its_text(load: LoadModel) -> None:
    request = prepared(load("base"), "Hi", voice=voice(frames=40))
    prompt = prompt_of(request)
    assert prompt.text[-1] == PAD
    assert len(prompt.text_track) == 0
