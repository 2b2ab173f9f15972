"""Log probabilities are those of the model's own logits, alone and in a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from izwi.backends.torch.backend import torch_backend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.speech import TranscriptionInput
from izwi.request.sequence import Sequence
from izwi.runner.batch import row_of
from izwi_models.qwen3_asr import FAMILY
from izwi_models.qwen3_asr.text import TEXT_TAG, parse_answer
from tests.models.loading import Checkpoint, load_checkpoint
from tests.models.test_asr import CASES, FullContext, greedy
from tests.models.tiny_asr import waveform, write_tiny_asr
from tests.steps import batch, step

BACKEND = torch_backend("cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Checkpoint:
    torch.set_num_threads(1)
    return load_checkpoint(FAMILY, write_tiny_asr(tmp_path_factory.mktemp("tiny") / "asr"), BACKEND)


def ask(n: int, *, logprobs: bool = True) -> TranscriptionInput:
    case = CASES[n]
    return TranscriptionInput(
        waveform(case["seconds"]),
        language=case["language"],
        context=case["context"],
        temperature=0.8 if n % 2 else 0.0,  # what was drawn need not be the likeliest
        seed=n,
        max_new_tokens=12,
        logprobs=logprobs,
    )


def heard(model: Checkpoint, asks: dict[str, TranscriptionInput]) -> dict[str, Any]:
    """Ids and log probabilities of requests that run together."""
    engine = Engine({"tiny": model.model}, BACKEND, EngineConfig(kv_bytes=1 << 22))
    logs: dict[str, Any] = {name: ([], []) for name in asks}
    for name, asked in asks.items():
        engine.submit(model.frontend.prepare_transcription(name, "tiny", asked))
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.error is None
            ids, logprobs = logs[chunk.request_id]
            ids += chunk.entries[:, 0].tolist()
            assert (chunk.logprobs is not None) == asks[chunk.request_id].logprobs
            if chunk.logprobs is not None:
                assert chunk.logprobs.dtype == np.float32
                assert len(chunk.logprobs) == len(chunk.entries)
                logprobs += chunk.logprobs.tolist()
    return logs


def forced(model: Checkpoint, n: int, ids: list[int]) -> torch.Tensor:
    """Logits before each id, from the whole prompt anew without pages: (ids, vocabulary)."""
    sequence = Sequence(model.frontend.prepare_transcription("r", "tiny", ask(n)), 0)
    sequence.encoded = list(model.model.encode(sequence.request.prompt.encode_inputs))
    logits: list[Any] = []
    for token in ids:
        row = row_of(sequence, 0, sequence.num_positions)
        step(model.model, model.model._ops, batch(row), FullContext(row.stop), greedy(logits))
        sequence.emitted.append((token,))
    return torch.cat(logits)


@pytest.mark.parametrize("n", range(3))
def test_they_are_of_the_models_own_logits(model, n):
    ids, logprobs = heard(model, {"r": ask(n)})["r"]
    assert len(ids) > 4
    expected = torch.log_softmax(forced(model, n, ids), -1).gather(-1, torch.tensor(ids)[:, None])
    np.testing.assert_allclose(logprobs, expected[:, 0].numpy(), atol=1e-5, rtol=0)


def test_logprobs_do_not_depend_on_the_batch_and_come_on_request(model):
    names = range(len(CASES))
    together = heard(model, {str(n): ask(n, logprobs=n % 3 != 2) for n in names})
    for n in names:
        ids, logprobs = heard(model, {"r": ask(n)})["r"]
        assert together[str(n)] == (ids, logprobs if n % 3 != 2 else [])


@pytest.mark.parametrize("case", [*CASES, {"greedy": [*range(0, 256, 5), 304, 306, 32, 305, 66]}])
def test_spelled_tokens_join_to_the_text(model, case):
    language, ids = case.get("language"), case["greedy"]
    for count in range(len(ids) + 1):
        spelled = model.frontend.spell(ids[:count], language)
        assert len(spelled) == count
        raw = b"".join(spelled).decode(errors="replace").rstrip()
        assert parse_answer(raw, "English").text == model.frontend.read(ids[:count], language).text


def test_the_tag_and_special_tokens_say_nothing(model):
    tokenizer = model.frontend._tokenizer
    tag = tokenizer.id_of(TEXT_TAG)
    answer = [*tokenizer.encode("language English"), tag, *tokenizer.encode(" the  system\u20ac ")]
    ids = [*answer, tokenizer.id_of("<|im_end|>"), *tokenizer.encode("an")]
    spelled = model.frontend.spell(ids, None)
    assert not any(spelled[: answer.index(tag) + 1])
    assert (
        b"".join(spelled).decode() == "the  system\u20ac an" == model.frontend.read(ids, None).text
    )
    assert spelled[len(answer)] == b""
    assert b"".join(model.frontend.spell(ids, "en")).decode() == model.frontend.read(ids, "en").text
