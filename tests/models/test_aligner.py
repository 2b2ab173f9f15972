"""The aligner against the reference's numbers in tests/golden/aligner.npz, and in the engine."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.folder import parse_config
from izwi.errors import CheckpointError, InvalidAudio, InvalidRequest, TooLarge
from izwi.inputs.speech import AlignmentInput
from izwi.model.capability import Capability
from izwi.request.request import Request
from izwi.request.sequence import Sequence
from izwi.runner.batch import row_of
from izwi_models import FAMILIES
from izwi_models.qwen3_aligner import FAMILY
from izwi_models.qwen3_aligner.config import AlignerConfig, tensor_shapes
from izwi_models.qwen3_aligner.repair import in_order
from izwi_models.qwen3_aligner.words import split_words
from tests.models.loading import Checkpoint, load_checkpoint
from tests.models.test_asr import CachedContext, FullContext
from tests.models.tiny_aligner import TINY, write_tiny_aligner
from tests.models.tiny_asr import waveform
from tests.steps import batch, step

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "aligner.npz")
CASES: list[dict[str, Any]] = json.loads(str(GOLDEN["cases"]))
WORDS: list[tuple[str, str, list[str]]] = json.loads(str(GOLDEN["words"]))
TAGGED: dict[str, list[str]] = json.loads(str(GOLDEN["tagged"]))
STEMS = frozenset(json.loads(str(GOLDEN["stems"])))
LOGIT_STEP = 13


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    torch.set_num_threads(1)  # larger is slower at this size
    folder = write_tiny_aligner(tmp_path_factory.mktemp("tiny") / "aligner")
    lines = "".join(f"{stem} 3 n\n" for stem in sorted(STEMS))
    (folder / "korean_dict_jieba.dict").write_text(lines, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def model(folder) -> Checkpoint:
    return load_checkpoint(FAMILY, folder, torch_backend("cpu"))


@pytest.fixture(autouse=True)
def nagisa(monkeypatch) -> None:
    """The package's output, so that the tests do not need it."""
    tagging = SimpleNamespace(tagging=lambda text: SimpleNamespace(words=TAGGED[text]))
    monkeypatch.setitem(sys.modules, "nagisa", tagging)


def request_of(model: Checkpoint, case: dict[str, Any], name: str = "r") -> Request:
    ask = AlignmentInput(waveform(case["seconds"]), case["text"], case["language"])
    return model.frontend.prepare_alignment(name, "tiny", ask)


def sequence_of(model: Checkpoint, case: dict[str, Any]) -> Sequence:
    sequence = Sequence(request_of(model, case), 0)
    sequence.encoded = list(model.model.encode(sequence.request.prompt.encode_inputs))
    return sequence


def greedy(logits: Any, codebook: int) -> Any:
    assert codebook == 0
    return logits.argmax(-1)


def answer_of(model: Checkpoint, request: Request, classes: list[int]) -> list[list[Any]]:
    words = model.frontend.read_alignment(request, classes)
    return [[word.word, word.start_s, word.end_s] for word in words]


def test_family_is_listed():
    assert FAMILY in FAMILIES


@pytest.mark.parametrize("n", range(len(CASES)))
def test_prompt_and_its_marks_are_the_references(model, n):
    request, prompt = request_of(model, CASES[n]), CASES[n]["prompt"]
    assert request.prompt.token_ids.tolist() == prompt
    stamp = TINY["timestamp_token_id"]
    assert list(request.output_positions) == [i for i, token in enumerate(prompt) if token == stamp]
    assert request.max_entries == len(request.output_positions) == len(CASES[n]["classes"])


@pytest.mark.parametrize("n", range(len(CASES)))
def test_logits_and_times_are_the_references(model, n):
    case, sequence = CASES[n], sequence_of(model, CASES[n])
    seen: list[Any] = []

    def pick(logits: Any, codebook: int) -> Any:
        seen.append(logits)
        return greedy(logits, codebook)

    row = row_of(sequence, 0, sequence.num_positions)
    classes = step(
        model.model, model.model._ops, batch(row), FullContext(sequence.num_positions), pick
    )
    np.testing.assert_allclose(seen[0][:, ::LOGIT_STEP], GOLDEN[f"logits_{n}"], atol=1e-3, rtol=0)
    assert classes[:, 0].tolist() == case["classes"]
    assert answer_of(model, sequence.request, case["classes"]) == case["answer"]


def test_all_cases_as_one_batch_in_chunks_name_the_references_classes(model):
    sequences = [sequence_of(model, case) for case in CASES]
    cache: dict[tuple[int, int], Any] = {}
    done = [0] * len(sequences)
    while live := [i for i, s in enumerate(sequences) if done[i] < s.num_positions]:
        # 23 positions at a time cut windows, words and pairs of marks anywhere
        rows = [
            row_of(sequences[i], done[i], min(done[i] + 23, sequences[i].num_positions))
            for i in live
        ]
        context = CachedContext(cache, rows)
        drawn = iter(step(model.model, model.model._ops, batch(*rows), context, greedy).tolist())
        for i, row in zip(live, rows, strict=True):
            sequences[i].emitted += [tuple(next(drawn)) for _ in row.drawn]
            done[i] = row.stop
    for sequence, case in zip(sequences, CASES, strict=True):
        assert [entry for (entry,) in sequence.emitted] == case["classes"]


@pytest.mark.parametrize(("language", "text", "words"), WORDS)
def test_words_are_the_references(language, text, words):
    found = split_words(text, language, STEMS)
    assert [word.text for word in found] == words
    ends = [place for word in found for place in (word.start, word.stop)]
    assert ends == sorted(ends)  # in order, apart, and inside the text
    assert all(0 <= place <= len(text) for place in ends)
    if language != "Japanese":  # whose words are normalised
        for word in found:
            span = text[word.start : word.stop]
            assert span[0] == word.text[0]
            assert span[-1] == word.text[-1]
            assert [c for c in span if c in word.text] == list(word.text)


def test_korean_words_stay_whole_without_the_list():
    text = "나는 학교에 갔다가 집으로 돌아왔습니다!"
    assert [word.text for word in split_words(text, "Korean")] == text.rstrip("!").split()


def test_japanese_without_its_package_is_refused(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "nagisa", None)
    with pytest.raises(InvalidRequest, match="nagisa"):
        model.frontend.prepare_alignment("r", "tiny", AlignmentInput(waveform(1.0), "今日", "ja"))


def test_times_are_put_in_order_as_the_reference_does():
    pairs = json.loads(str(GOLDEN["fixed"]))
    assert sum(times != fixed for times, fixed in pairs) > 30
    for times, fixed in pairs:
        assert in_order(times) == fixed
        assert fixed == sorted(fixed)


@pytest.mark.parametrize(
    ("seconds", "text", "language", "error", "param"),
    [
        (1.0, " -- ?", None, InvalidRequest, "text"),
        (1.0, "word", "French", InvalidRequest, "language"),
        (1.0, "word", "Klingon", InvalidRequest, "language"),
        (0.01, "word", None, InvalidAudio, "file"),
        (62.5, "word", None, TooLarge, "file"),  # 780 classes of 80 ms
        (1.0, "a " * 30_000, None, TooLarge, "text"),
    ],
)
def test_invalid_alignments_name_their_parameter(model, seconds, text, language, error, param):
    with pytest.raises(error) as caught:
        model.frontend.prepare_alignment(
            "r", "tiny", AlignmentInput(waveform(seconds), text, language)
        )
    assert caught.value.param == param
    assert Capability.ALIGN in model.frontend.capabilities


@pytest.mark.parametrize("key", ["classify_num", "timestamp_token_id", "audio_token_id"])
def test_the_error_names_a_missing_key(folder, tmp_path, key):
    values = json.loads((folder / "config.json").read_text())
    values.pop(key, None)
    values["thinker_config"].pop(key, None)
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=key):
        load_checkpoint(FAMILY, tmp_path, torch_backend("cpu"))


def test_the_published_size_has_the_references_tensors():
    facts = json.loads(str(GOLDEN["real"]))
    shapes = tensor_shapes(parse_config(AlignerConfig, facts["config"], "config.json"))
    assert len(shapes) == facts["names"]
    assert sum(math.prod(shape) for shape in shapes.values()) == facts["parameters"]
    listed = json.dumps(sorted((name, list(shape)) for name, shape in shapes.items()))
    assert hashlib.sha256(listed.encode()).hexdigest() == facts["digest"]
