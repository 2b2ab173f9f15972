"""Requests and checkpoints that the transcriber accepts or refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import embedded
from izwi.errors import CheckpointError, InvalidAudio, InvalidRequest, TooLarge
from izwi.inputs.speech import TranscriptionInput
from izwi.model.capability import Capability
from izwi.model.layers import KVSpec
from izwi_models.qwen3_asr import FAMILY
from izwi_models.qwen3_asr.frontend import Qwen3ASRFrontend, load_frontend
from tests.models.loading import Checkpoint, load_checkpoint
from tests.models.tiny_asr import waveform, write_tiny_asr


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return write_tiny_asr(tmp_path_factory.mktemp("tiny") / "asr")


@pytest.fixture
def folder(source, tmp_path) -> Path:
    """A copy that a test may break."""
    for path in source.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.fixture(scope="module")
def model(source) -> Checkpoint:
    return load(source)


def load(folder: Path) -> Checkpoint:
    return load_checkpoint(FAMILY, folder, torch_backend("cpu"))


def edit(path: Path, *keys: str, **values: Any) -> None:
    """Set values of the object at `keys` of a JSON file; ... takes a key out."""
    whole = json.loads(path.read_text(encoding="utf-8"))
    inner = whole
    for key in keys:
        inner = inner[key]
    for key, value in values.items():
        if value is ...:
            del inner[key]
        else:
            inner[key] = value
    path.write_text(json.dumps(whole), encoding="utf-8")


def prepare(model: Checkpoint, samples: Any = None, **ask: Any) -> Any:
    given = waveform(1.0) if samples is None else samples
    return model.frontend.prepare_transcription("r", "tiny", TranscriptionInput(given, **ask))


def test_facts_for_the_engine(model):
    assert Capability.TRANSCRIBE in model.frontend.capabilities
    assert KVSpec.from_layers(model.model.layers) == KVSpec(
        num_layers=3, num_kv_heads=2, head_dim=16, rope_theta=1e6
    )
    assert model.model.tracks[0].num_codebooks == 1
    assert model.model.tracks[0].suppressed is None
    assert model.model.max_positions == 65536
    assert model.frontend.languages == ("Chinese", "English", "German")


def test_a_request_carries_its_sampling(model):
    request = prepare(model, temperature=0.7, seed=5, max_new_tokens=9)
    assert request.sampling.temperature == 0.7
    assert (request.seed, request.max_entries) == (5, 9)


@pytest.mark.parametrize(("seconds", "tokens"), [(1.0, 512), (60.0, 752), (400.0, 4096)])
def test_runaway_answers_end(model, seconds, tokens):
    assert prepare(model, np.zeros(int(16000 * seconds), np.float32)).max_entries == tokens


def test_only_loud_audio_is_scaled(model):
    def features(samples: Any) -> Any:
        return prepare(model, samples).prompt.encode_inputs[0].values

    samples = waveform(1.0)
    samples *= np.float32(1.0 / np.abs(samples).max())
    np.testing.assert_allclose(features(samples * np.float32(3.0)), features(samples), atol=1e-5)
    assert np.abs(features(samples * np.float32(0.1)) - features(samples)).max() > 0.1


@pytest.mark.parametrize(
    "samples",
    [
        np.zeros(0, np.float32),
        np.zeros(200, np.float32),
        np.zeros((2, 16000), np.float32),
        np.full(16000, np.nan, np.float32),
        np.full(16000, np.inf, np.float32),
    ],
    ids=["empty", "short", "stereo", "nan", "inf"],
)
def test_unusable_audio_is_invalid(model, samples):
    with pytest.raises(InvalidAudio):
        prepare(model, samples)


@pytest.mark.parametrize(
    ("ask", "param"),
    [
        ({"language": "Klingon"}, "language"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"context": "word " * 20000}, "prompt"),
    ],
    ids=["unknown", "negative", "nan", "none", "long"],
)
def test_bad_requests_name_their_parameter(model, ask, param):
    with pytest.raises(InvalidRequest) as raised:
        prepare(model, **ask)
    assert raised.value.param == param


def test_a_language_not_in_the_folders_list_is_refused(model):
    """As a speech model refuses it: what comes out would not be that language."""
    assert "French" not in model.frontend.languages
    with pytest.raises(InvalidRequest, match="no language 'fr'; the model has: ") as raised:
        prepare(model, language="fr")
    assert raised.value.param == "language"
    with pytest.raises(InvalidRequest, match="no language 'fr'"):
        model.frontend.open_stream(language="fr")


def test_special_tokens_in_the_context_stay_text(model):
    ids = prepare(model, context="<|im_end|>").prompt.token_ids.tolist()
    assert ids.count(304) == 2


def test_a_checkpoint_may_be_made_for_short_audio(folder):
    edit(folder / "config.json", max_audio_seconds=8)
    model = load(folder)
    samples = waveform(30.0)
    pieces = model.frontend.split_audio(samples)
    assert len(pieces) >= 4
    assert max(stop - start for start, stop in pieces) <= 8 * 16000
    for start, stop in pieces:
        prepare(model, samples[start:stop])
    with pytest.raises(TooLarge, match="too long"):
        prepare(model, samples)


def test_a_long_file_is_cut_near_every_thirty_seconds_where_it_is_quietest(model):
    samples = np.full(16000 * 100, 0.1, np.float32)
    for second in (27.0, 58.5, 90.0):  # within 5 s of 30 s after the last
        samples[int(16000 * second) :][:1600] = 0.0
    pieces = model.frontend.split_audio(samples)
    assert [start for start, _ in pieces] == [0, *(int(16000 * s) for s in (27.0, 58.5, 90.0))]
    assert pieces[-1][1] == len(samples)
    for start, stop in pieces:
        # few enough positions for attention that needs no parts
        assert prepare(model, samples[start:stop]).prompt.num_positions < 512
    whole = samples[: 16000 * 30]
    assert model.frontend.split_audio(whole) == [(0, len(whole))]


def test_a_piece_may_have_twenty_minutes(model):
    """`split_audio` makes none so long; others may ask for one."""
    prepare(model, np.zeros(16000 * 1200, np.float32))


def test_no_features_of_another_kind(folder):
    edit(folder / "preprocessor_config.json", feature_size=80)
    with pytest.raises(CheckpointError, match="feature_size"):
        load(folder)


@pytest.mark.parametrize(
    "keys",
    [
        ("thinker_config",),
        ("thinker_config", "audio_config"),
        ("thinker_config", "audio_token_id"),
        ("thinker_config", "audio_config", "n_window_infer"),
        ("thinker_config", "text_config", "rope_theta"),
        ("thinker_config", "text_config", "tie_word_embeddings"),
    ],
    ids=lambda keys: keys[-1],
)
def test_the_error_names_a_missing_key(folder, keys):
    edit(folder / "config.json", *keys[:-1], **{keys[-1]: ...})
    with pytest.raises(CheckpointError, match=keys[-1]):
        load(folder)


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        (("thinker_config", "audio_config"), {"activation_function": "relu"}),
        (("thinker_config", "audio_config"), {"n_window_infer": 150}),
        (("thinker_config", "audio_config"), {"output_dim": 64}),
        (("thinker_config", "text_config"), {"attention_bias": True}),
        ((), {"max_audio_seconds": 0}),
    ],
    ids=str,
)
def test_a_value_that_is_not_computed_is_named(folder, keys, values):
    edit(folder / "config.json", *keys, **values)
    with pytest.raises(CheckpointError, match=next(iter(values))):
        load(folder)


@pytest.mark.parametrize("eos", ["x", [304, "x"], -1])
def test_stop_ids_must_be_ids(folder, eos):
    edit(folder / "generation_config.json", eos_token_id=eos)
    with pytest.raises(CheckpointError, match="eos_token_id"):
        load(folder)


def test_one_stop_id_need_not_be_a_list(folder):
    edit(folder / "generation_config.json", eos_token_id=304)
    assert prepare(load(folder)).stop_ids == (304,)


@pytest.mark.parametrize(("eos", "stop_ids"), [([304, 151645], (304,)), (..., ()), ([], ())])
def test_stop_ids_past_the_vocabulary_never_come(folder, eos, stop_ids):
    edit(folder / "generation_config.json", eos_token_id=eos)  # ... takes it out
    assert prepare(load(folder)).stop_ids == stop_ids


def test_a_tied_checkpoint_may_repeat_its_head(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["thinker.lm_head.weight"] = tensors["thinker.model.embed_tokens.weight"].clone()
    save_file(tensors, path)
    assert "thinker.lm_head.weight" not in load(folder).model._weights


def test_an_untied_checkpoint_has_its_own_head(folder):
    edit(folder / "config.json", "thinker_config", "text_config", tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match="lm_head"):
        load(folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["thinker.lm_head.weight"] = torch.ones(512, 48)
    save_file(tensors, path)
    assert float(load(folder).model._head.sum()) == 512 * 48


def test_a_missing_file_is_named(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="safetensors"):
        load(folder)


def prompts_with(frontend: Qwen3ASRFrontend, context: str) -> list[list[int]]:
    """Return the ids of a whole transcription's prompt, and of a live one's first step."""
    samples = waveform(1, 40_000)
    whole = frontend.prepare_transcription("r", "m", TranscriptionInput(samples, context=context))
    stream = frontend.open_stream(context=context)
    stream.write(samples)
    stream.close()
    step = stream.next_step()
    assert step is not None
    live = frontend.prepare_stream_step("s", "m", stream, step)
    return [request.prompt.token_ids.tolist() for request in (whole, live)]


def test_embedded_checkpoint_gets_no_context_and_a_published_one_does(model) -> None:
    ours = load_frontend(embedded()["izwi-tiny-asr"])
    assert prompts_with(ours, "Kowalczyk, Siobhan") == prompts_with(ours, "")

    pairs = zip(
        prompts_with(model.frontend, "Kowalczyk, Siobhan"),
        prompts_with(model.frontend, ""),
        strict=True,
    )
    for with_context, without in pairs:
        assert len(with_context) > len(without)
