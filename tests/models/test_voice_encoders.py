"""Clips padded to one length give the same vector and codes as each clip alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from izwi.arrays import Float32
from izwi.audio.mel import speaker_log_mel
from izwi.backends.torch.backend import TorchBackend
from izwi.backends.torch.ops import TorchOps
from izwi.model.encoders import EncodesPadded
from izwi.request.request import EncodeInput
from izwi_models import FAMILIES
from izwi_models.qwen3_codec import codec_config, encoder, prepare, tensor_shapes
from izwi_models.qwen3_tts.config import SpeakerEncoderConfig
from izwi_models.qwen3_tts.config import _speaker_shapes as speaker_shapes
from izwi_models.qwen3_tts.prompt import ENCODE_CODES, ENCODE_SPEAKER
from izwi_models.qwen3_tts.speaker import speaker_embedding
from izwi_models.qwen3_tts.voice_encoders import PaddedCodes, PaddedSpeakers
from tests.models.loading import Checkpoint, load_checkpoint
from tests.models.tiny_asr import waveform
from tests.models.tiny_tts import write_tiny_tts
from tests.random_weights import random_weights

OPS = TorchOps()
NEAR = 1e-5  # of a vector's largest number
LONGEST = 2 * 24_000
# around the strides' edges: 4, 20, 120, 960 and 1,920 samples; whole seconds; one sample
SAMPLES = (1, 3, 4, 5, 19, 20, 21, 119, 121, 959, 960, 961, 1919, 1920, 1921, 2880, 9599, 24001)
# what the widest convolution needs to reflect; odd and even; the edge of a bucket
FRAMES = (5, 6, 46, 47, 93, 94, 187, 188)


@pytest.fixture(scope="module", autouse=True)
def _no_grad() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # larger is slower at this size
    with torch.no_grad():
        yield
    torch.set_num_threads(before)


def load(folder: Path) -> Checkpoint:
    family = next(family for family in FAMILIES if family.model_type == "qwen3_tts")
    return load_checkpoint(family, folder, TorchBackend(OPS))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return load(write_tiny_tts(tmp_path_factory.mktemp("tiny") / "base", "base"))


def clip(samples: int, seed: int = 0) -> Float32:
    return waveform(samples / 16_000, seed)


def padded(pieces: list[Float32], shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """(pieces, *shape), noise as loud as speech behind each piece."""
    values = torch.randn(len(pieces), *shape, generator=torch.Generator().manual_seed(seed))
    for row, piece in zip(values, pieces, strict=True):
        row[: len(piece)] = torch.from_numpy(piece)
    return values


def assert_codes_of_each_alone(model: Checkpoint, lengths: list[int], seed: int) -> None:
    clips = [clip(n, seed + i) for i, n in enumerate(lengths)]
    codes = model.model.padded_encoders[ENCODE_CODES]
    together = codes.encode_padded(padded(clips, (LONGEST,), seed), torch.tensor(lengths))
    for row, piece in zip(together, clips, strict=True):
        (alone,) = model.model.encode([EncodeInput(ENCODE_CODES, piece)])
        assert torch.equal(codes.unpadded(row, len(piece)), alone), len(piece)


def test_codes_of_padded_clips_at_awkward_lengths(model: Checkpoint) -> None:
    assert_codes_of_each_alone(model, [*SAMPLES, LONGEST], seed=0)


@pytest.mark.parametrize("seed", range(4))
def test_codes_of_padded_clips_of_any_length(model: Checkpoint, seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert_codes_of_each_alone(model, rng.integers(1, LONGEST, 8).tolist(), 100 * seed)


def test_codes_of_clips_that_are_convolved_in_parts(
    model: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "_MOST_SAMPLES", 2 * LONGEST + 1)
    assert_codes_of_each_alone(model, [24001, 30000, LONGEST, 961, 7000], seed=7)
    monkeypatch.setattr(encoder, "_MOST_SAMPLES", 1)  # a clip at least
    assert_codes_of_each_alone(model, [24001, 30000], seed=8)


@pytest.mark.parametrize("seed", range(4))
def test_vectors_of_padded_clips(model: Checkpoint, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = [*FRAMES, *rng.integers(5, 188, 6).tolist()]
    mels = [speaker_log_mel(clip(256 * n, 100 * seed + i)) for i, n in enumerate(lengths)]
    assert [len(mel) for mel in mels] == lengths
    speakers = model.model.padded_encoders[ENCODE_SPEAKER]
    together = speakers.encode_padded(padded(mels, (188, 128), seed), torch.tensor(lengths))
    for row, mel in zip(together, mels, strict=True):
        (alone,) = model.model.encode([EncodeInput(ENCODE_SPEAKER, mel)])
        difference = (speakers.unpadded(row, len(mel)) - alone).abs().max()
        assert difference < NEAR * alone.abs().max(), len(mel)


@pytest.mark.slow
def test_codes_of_padded_clips_at_the_published_size() -> None:
    golden = np.load(Path(__file__).parent.parent / "golden" / "codec.npz")
    published = {"encode_downsample_rate": 1920, **json.loads(str(golden["real_config"]))}
    config = codec_config(published, "real")
    drawn = random_weights(tensor_shapes(config), seed=0)
    weights = prepare(OPS, {name: torch.from_numpy(w) for name, w in drawn.items()}, config)
    codes = PaddedCodes(OPS, weights, config)
    clips = [clip(n, n) for n in (9_601, 15_000)]
    lengths = torch.tensor([len(piece) for piece in clips])
    together = codes.encode_padded(padded(clips, codes.shapes[0], 0), lengths)
    for row, piece in zip(together, clips, strict=True):
        alone = encoder.encode(OPS, weights, config, torch.from_numpy(piece)[None])[0]
        assert torch.equal(codes.unpadded(row, len(piece)), alone)


def test_vectors_of_padded_clips_at_the_published_size() -> None:
    config = SpeakerEncoderConfig(enc_dim=1024)
    drawn = random_weights(speaker_shapes(config), seed=0)
    weights = {name: torch.from_numpy(w) for name, w in drawn.items()}
    mels = [speaker_log_mel(clip(256 * n, n)) for n in (46, 71)]
    lengths = torch.tensor([len(mel) for mel in mels])
    speakers = PaddedSpeakers(OPS, weights, config)
    together = speakers.encode_padded(padded(mels, speakers.shapes[0], 0), lengths)
    for vector, mel in zip(together, mels, strict=True):
        alone = speaker_embedding(OPS, weights, config, torch.from_numpy(mel)[None])[0]
        assert (vector - alone).abs().max() < NEAR * alone.abs().max()


def test_buckets_of_clips(model: Checkpoint) -> None:
    assert isinstance(model.model, EncodesPadded)
    seconds = [shape[0] / 24_000 for shape in model.model.padded_encoders[ENCODE_CODES].shapes]
    frames = [
        shape[0] * 256 / 24_000 for shape in model.model.padded_encoders[ENCODE_SPEAKER].shapes
    ]
    for longest, of_codes, of_speakers in zip((1, 2, 4, 8, 15, 30), seconds, frames, strict=True):
        assert longest <= of_codes < longest + 0.08
        assert longest <= of_speakers < longest + 0.011


@pytest.mark.parametrize(
    ("kind", "own", "kinds"),
    [
        ("base", {}, {ENCODE_SPEAKER, ENCODE_CODES}),
        ("base", {"clones_by_vector": True}, {ENCODE_SPEAKER}),
        ("custom_voice", {}, set()),
    ],
)
def test_only_what_can_be_asked_for_is_padded(
    tmp_path: Path, kind: str, own: dict[str, bool], kinds: set[str]
) -> None:
    path = write_tiny_tts(tmp_path / kind, kind) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | own), encoding="utf-8")
    assert load(path.parent).model.padded_encoders.keys() == kinds


def test_gradients_pass_by_the_pads(model: Checkpoint) -> None:
    """Training on padded clips is training on the clips."""
    config = model.frontend._config.speaker_encoder_config
    assert config is not None
    mel = torch.from_numpy(padded([speaker_log_mel(clip(256 * 50))], (70, 128), 1).numpy())
    with torch.enable_grad():
        mel.requires_grad_()
        lengths = torch.tensor([50])
        speaker_embedding(OPS, model.model._weights, config, mel, lengths).sum().backward()
    assert mel.grad is not None
    assert mel.grad[0, :50].abs().sum(-1).all()
    assert not mel.grad[0, 50:].any()
