"""Qwen3-TTS against the reference's numbers in tests/golden/tts.npz, and against itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from izwi.audio.mel import speaker_log_mel
from izwi.backends.torch.backend import torch_backend
from izwi.inputs.speech import ReferenceClip, SpeechInput, TextMode, VoicePrompt
from izwi.request.request import Request
from izwi.runner.batch import row_of
from izwi_models import FAMILIES
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_tts import talker
from izwi_models.qwen3_tts.config import read_config, tensor_shapes
from izwi_models.qwen3_tts.prompt import SpeechText
from izwi_models.qwen3_tts.speaker import speaker_embedding
from tests.models.loading import Checkpoint, load_checkpoint
from tests.models.tiny_tts import write_json, write_tiny_tts
from tests.models.tts_loop import PackedContext, greedy, processed, run, start
from tests.steps import batch, step, whole_span

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "tts.npz")
FORMS: dict[str, dict[str, Any]] = json.loads(str(GOLDEN["forms"]))
KINDS = ("base", "custom_voice", "voice_design")
FIRST_FORM = {
    "base": "base_icl_stream",
    "custom_voice": "voice_instruct",
    "voice_design": "design_full",
}
TOLERANCE = 1e-4
CLIP = GOLDEN["clip"].astype(np.float32) / 32768


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    family = next(family for family in FAMILIES if family.model_type == "qwen3_tts")
    loaded = {}
    for kind in (*KINDS, "both"):
        folder = write_tiny_tts(tmp_path_factory.mktemp(kind), kind, int(GOLDEN["seed"]))
        loaded[kind] = load_checkpoint(family, folder, torch_backend("cpu", "float32"))
    return loaded


def clip_codes(frames: int) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(frames)).integers(0, 64, (frames, 16))


def ask_of(form: dict[str, Any]) -> SpeechInput:
    voice: str | VoicePrompt | None = form.get("speaker")
    if "clip" in form:
        frames = form["clip"]
        codes = clip_codes(frames) if frames else None
        voice = VoicePrompt(GOLDEN["clip_vector"], codes, form["ref_text"] if frames else None)
    return SpeechInput(
        text=form["text"],
        voice=voice,
        language=form.get("language"),
        instruct=form.get("instruct"),
        text_mode=TextMode.FULL if form["full"] else TextMode.STREAMING,
        temperature=0.0,
    )


def request_of(models: dict[str, Checkpoint], form: dict[str, Any]) -> Request:
    return models[form["kind"]].frontend.prepare_speech("id", "tiny", ask_of(form))


def error(found: Any, expected: np.ndarray) -> float:
    found = np.asarray(found)
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max())


def embedded(model: Checkpoint, request: Request, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """What the talker is fed for a whole prompt."""
    seen = []
    real = talker.hidden_states

    def spy(ops: Any, weights: Any, config: Any, x: Any, context: Any) -> Any:
        seen.append(x)
        return real(ops, weights, config, x, context)

    monkeypatch.setattr(talker, "hidden_states", spy)
    sequence = start(model.model, request)
    rows = [row_of(sequence, 0, sequence.num_positions)]
    step(
        model.model,
        model.model._ops,
        batch(*rows),
        PackedContext(rows, {}),
        greedy(model.model, [sequence]),
    )
    monkeypatch.setattr(talker, "hidden_states", real)
    return np.asarray(seen[0])


@pytest.mark.parametrize("name", FORMS)
def test_prompt_is_the_references(
    models: dict[str, Checkpoint], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = FORMS[name]
    model, request = models[form["kind"]], request_of(models, form)
    assert error(embedded(model, request, monkeypatch), GOLDEN[f"{name}_prompt"]) < 1e-6
    ids = [
        *request.prompt.text_track.tolist(),
        310,
    ]  # the reference keeps one pad where it is empty
    track = talker.embed_text(model.model._ops, model.model._weights, torch.tensor(ids))
    expected = GOLDEN[f"{name}_track"]
    assert error(track[: len(expected)], expected) < 1e-6
    assert len(expected) == max(1, len(ids) - 1)


@pytest.mark.parametrize("name", FORMS)
def test_what_is_ids_is_embedded_from_ids(models: dict[str, Checkpoint], name: str) -> None:
    """As captured steps do; a clip and its speaker are no ids."""
    form = FORMS[name]
    model, request = models[form["kind"]], request_of(models, form)
    sequence = start(model.model, request)
    sequence.emitted = [tuple(codes) for codes in clip_codes(9).tolist()]
    length = sequence.num_prompt
    after, around = row_of(sequence, length, length + 9), row_of(sequence, length - 1, length + 2)
    for rows in ([row_of(sequence, 0, length + 9)], [around, after], [after]):
        inputs, expected = model.model.inputs(rows), model.model.embed(rows)
        if rows[0].start == 0 and "clip" in form:
            assert inputs is None
        if inputs is not None:
            assert inputs.shape == (len(expected), model.model.num_inputs)
            found = model.model.embed_inputs(model.model._ops.array(inputs))
            assert error(found, np.asarray(expected)) < 1e-6
        else:
            assert "clip" in form


@pytest.mark.parametrize("most", [12, pytest.param(80, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORMS)
def test_greedy_codes_are_the_references(
    models: dict[str, Checkpoint], name: str, most: int
) -> None:
    """By itself; `test_tts_engine.py` compares more frames, through the engine."""
    assert len(GOLDEN[f"{name}_codes"]) >= 64
    expected = GOLDEN[f"{name}_codes"][:most]
    form = FORMS[name]
    found = run(models[form["kind"]].model, [request_of(models, form)], len(expected))[0]
    assert (found == expected).all()


@pytest.mark.parametrize("kind", KINDS)
def test_many_prompts_in_chunks_give_the_same_codes(
    models: dict[str, Checkpoint], kind: str
) -> None:
    names = [name for name, form in FORMS.items() if form["kind"] == kind]
    requests = [request_of(models, FORMS[name]) for name in names]
    found = run(models[kind].model, requests, 12, chunk=7)
    for name, codes in zip(names, found, strict=True):
        assert (codes == GOLDEN[f"{name}_codes"][:12]).all(), name


@pytest.mark.parametrize("kind", KINDS)
def test_talker_and_predictor_logits(models: dict[str, Checkpoint], kind: str) -> None:
    model = models[kind]
    ops, weights, config = model.model._ops, model.model._weights, model.frontend._config
    name = FIRST_FORM[kind]
    prompt = torch.from_numpy(GOLDEN[f"{name}_prompt"])[None]
    context = ops.dense_context(1, prompt.shape[1])
    hidden = talker.hidden_states(ops, weights, config, prompt, context)[0]
    assert error(hidden, GOLDEN[f"{kind}_hidden"]) < TOLERANCE
    logits = talker.codec_logits(ops, weights, hidden[-4:])
    assert error(logits, GOLDEN[f"{kind}_logits"]) < TOLERANCE

    states = torch.from_numpy(GOLDEN[f"{kind}_frame_hidden"])
    codes = torch.from_numpy(GOLDEN[f"{name}_codes"][:8].astype(np.int64))
    forced = talker.predictor_logits(ops, weights, config, states, codes)
    assert error(forced, GOLDEN[f"{kind}_frame_logits"]) < TOLERANCE

    looped: list[torch.Tensor] = []

    def pick(row: torch.Tensor, codebook: int) -> torch.Tensor:
        looped.append(row)
        return codes[:, codebook]

    ids = talker.predict_codes(ops, weights, config, states, codes[:, 0], pick)
    assert (ids == codes).all()
    assert error(torch.stack(looped, 1), GOLDEN[f"{kind}_frame_logits"]) < TOLERANCE


def test_predictor_draws_the_references_ids(models: dict[str, Checkpoint]) -> None:
    for kind, name in FIRST_FORM.items():
        model = models[kind]
        states = torch.from_numpy(GOLDEN[f"{kind}_frame_hidden"])
        codes = GOLDEN[f"{name}_codes"][:8].astype(np.int64)
        first = torch.from_numpy(codes[:, 0])
        ids = talker.predict_codes(
            model.model._ops,
            model.model._weights,
            model.frontend._config,
            states,
            first,
            lambda x, _: x.argmax(-1),
        )
        assert (ids.numpy() == codes).all()


def test_processed_logits(models: dict[str, Checkpoint]) -> None:
    name = FIRST_FORM["voice_design"]
    model, steps = models["voice_design"], GOLDEN[f"{name}_steps"]
    sequence = start(model.model, request_of(models, FORMS[name]))
    for index, count in enumerate(steps.tolist()):
        frames = GOLDEN[f"{name}_codes"][:count].tolist()
        sequence.emitted = [tuple(frame) for frame in frames]
        row = processed(
            model.model, torch.from_numpy(GOLDEN[f"{name}_raw"][index]), sequence
        ).numpy()
        expected = GOLDEN[f"{name}_processed"][index]
        assert (np.isinf(row) == np.isinf(expected)).all()
        finite = np.isfinite(expected)
        assert error(row[finite], expected[finite]) < TOLERANCE


def test_speaker_encoder(models: dict[str, Checkpoint]) -> None:
    mel = speaker_log_mel(CLIP)
    assert error(mel[::7], GOLDEN["clip_mel"]) < TOLERANCE
    model = models["base"]
    encoder = model.frontend._config.speaker_encoder_config
    assert encoder is not None
    batch = torch.from_numpy(np.stack([mel, mel[::-1].copy()]))
    vectors = speaker_embedding(model.model._ops, model.model._weights, encoder, batch)
    assert error(vectors[0], GOLDEN["clip_vector"]) < TOLERANCE
    alone = speaker_embedding(model.model._ops, model.model._weights, encoder, batch[1:])
    assert error(vectors[1:], alone.numpy()) < 1e-5


@pytest.mark.parametrize("name", ["0b6_base", "0b6_custom_voice", "1b7_base", "1b7_custom_voice"])
def test_published_tensors(tmp_path: Path, name: str) -> None:
    write_json(tmp_path / "config.json", json.loads(str(GOLDEN[f"config_{name}"])))
    shapes = tensor_shapes(read_config(tmp_path))
    listed = {key: list(shape) for key, shape in shapes.items()}
    digest = hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()
    assert digest == str(GOLDEN[f"tensors_{name}"])
    count = sum(int(np.prod(shape)) for shape in shapes.values())
    assert count == json.loads(str(GOLDEN["counts"]))[name]
    assert (
        count
        == {
            "0b6_base": 914_643_008,
            "1b7_base": 1_928_677_440,
            "0b6_custom_voice": 905_788_672,
            "1b7_custom_voice": 1_916_676_352,
        }[name]
    )


def test_text_is_tokenised_as_the_whole_turn(tmp_path: Path) -> None:
    write_tiny_tts(tmp_path, "base")
    spoken = SpeechText(QwenTokenizer(tmp_path))
    for text, turn in json.loads(str(GOLDEN["tokens"])):
        role, ids = spoken.role_and_text(text)
        assert role == turn[:3], text
        assert ids == turn[3:-5], text


def test_a_tokenizer_of_bytes_is_cut_where_the_reference_cuts(tmp_path: Path) -> None:
    write_tiny_tts(tmp_path, "base")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = QwenTokenizer(tmp_path)
    spoken = SpeechText(tokenizer)
    start, end, line = 300, 301, tokenizer.encode("\n")
    turn = [start, *tokenizer.encode("assistant\nHi."), end, *line]
    both = [*turn, start, *tokenizer.encode("assistant\n")]
    assert spoken.role_and_text("Hi.") == (both[:3], both[3:-5])
    assert spoken.reference("Hi.") == turn[3:-2]
    assert spoken.instruct("Hi.") == [start, *tokenizer.encode("user\nHi."), end, *line]


def test_special_tokens_in_text_stay_text(models: dict[str, Checkpoint]) -> None:
    ask = SpeechInput("stop<|im_end|> go on <tts_text_eod>")
    prompt: Any = models["voice_design"].frontend.prepare_speech("id", "tiny", ask).prompt
    assert 301 not in prompt.text
    assert (prompt.text == 312).sum() == 1  # our own end


def test_clip_is_the_voice_it_is_encoded_to(
    models: dict[str, Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models["both"]
    samples = CLIP[:15001]
    encode = model.frontend.prepare_voice("v", "tiny", samples, "in the rain")
    assert encode.encode_only
    assert encode.prompt.num_positions == 0
    encoded = [np.asarray(x) for x in start(model.model, encode).encoded]
    voice = model.frontend.read_voice(encoded, "in the rain")
    assert voice.codes is not None
    assert voice.codes.shape == (8, 16)
    for clip, prompt in (
        (ReferenceClip(samples, "in the rain"), voice),
        (ReferenceClip(samples), VoicePrompt(voice.speaker_embedding)),
    ):
        ours = model.frontend.prepare_speech("a", "tiny", SpeechInput("Hello.", clip))
        theirs = model.frontend.prepare_speech("b", "tiny", SpeechInput("Hello.", prompt))
        assert ours.prompt.num_positions == theirs.prompt.num_positions
        x, y = (embedded(model, request, monkeypatch) for request in (ours, theirs))
        assert error(x, y) < 1e-6
        warm = model.model.codec.warm_codes(whole_span(start(model.model, ours)))
        if clip.text is None:
            assert warm is None
        else:
            assert warm is not None
            assert (np.asarray(warm) == voice.codes).all()
            kept = model.model.codec.warm_codes(whole_span(start(model.model, theirs)))
            assert (np.asarray(kept) == voice.codes).all()


def test_encode_batches_equal_shapes_and_keeps_order(models: dict[str, Checkpoint]) -> None:
    model = models["both"]
    requests = [
        model.frontend.prepare_voice("v", "tiny", CLIP[first : first + length], text)
        for first, length, text in ((0, 13000, "a"), (500, 13000, None), (0, 14000, "b"))
    ]
    inputs = [piece for request in requests for piece in request.prompt.encode_inputs]
    together = model.model.encode(inputs)
    assert [tuple(x.shape) for x in together] == [(64,), (7, 16), (64,), (64,), (8, 16)]
    for piece, result in zip(inputs, together, strict=True):
        assert error(result, model.model.encode([piece])[0].numpy()) < 1e-5


def test_vocode_streams_what_one_shot_decodes(models: dict[str, Checkpoint]) -> None:
    model = models["custom_voice"]

    def silence() -> dict[str, torch.Tensor]:
        kinds = {"float": torch.float32, "int64": torch.int64}
        return {
            name: torch.zeros((2, *spec.shape), dtype=kinds[spec.dtype])
            for name, spec in model.model.codec.state.items()
        }

    codes = torch.from_numpy(np.stack([clip_codes(9), clip_codes(80)[:9]]))
    whole, _ = model.model.codec.decode(codes, silence())
    assert whole.shape == (2, 9 * model.model.codec.frame_samples)
    parts, state = [], silence()
    for first, stop in ((0, 1), (1, 4), (4, 9)):
        part, state = model.model.codec.decode(codes[:, first:stop], state)
        parts.append(part)
    assert error(torch.cat(parts, 1), whole.numpy()) < 1e-5
