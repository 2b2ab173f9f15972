"""LFM2-Audio's codecs against the reference's numbers, and against themselves as streams."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from izwi.backends.torch.ops import TorchOps
from izwi.errors import CheckpointError
from izwi.model.layers import StateSpec
from izwi_models.lfm2_audio import detokenizer, mimi
from izwi_models.lfm2_audio.audio_config import DetokenizerConfig, MimiConfig, detokenizer_config
from izwi_models.lfm2_audio.audio_tensors import detokenizer_shapes, mimi_shapes
from tests.random_weights import random_weights

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "lfm2_audio_codecs.npz")
SEED = int(GOLDEN["seed"])
GAINS = {"lin.weight": 0.2, "decoder.": 0.7}
OPS = TorchOps()
TOLERANCE = 1e-5
FRAME = 1920
PCM_STEP = 29
LAG = 480

Weights = dict[str, torch.Tensor]
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module", autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def golden_json(name: str) -> Any:
    return json.loads(str(GOLDEN[name]))


def drawn(shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    arrays = random_weights(shapes, SEED, GAINS)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@dataclass(frozen=True)
class Codec:
    """Either codec with its weights."""

    decode: Callable[[torch.Tensor, Mapping[str, torch.Tensor]], tuple[torch.Tensor, State]]
    specs: Mapping[str, StateSpec]
    codebook_size: int

    def zeros(self, batch: int) -> State:
        return {
            name: torch.zeros(
                (batch, *spec.shape), dtype=torch.int64 if spec.dtype == "int64" else torch.float32
            )
            for name, spec in self.specs.items()
        }

    def stream(self, codes: torch.Tensor, chunks: list[int]) -> torch.Tensor:
        """(batch, frames, codebooks) in chunks of so many frames, the last size repeating."""
        state, out, done = self.zeros(len(codes)), [], 0
        while done < codes.shape[1]:
            frames = chunks.pop(0) if len(chunks) > 1 else chunks[0]
            pcm, state = self.decode(codes[:, done : done + frames], state)
            out.append(pcm)
            done += frames
        return torch.cat(out, 1)

    def random(self, batch: int, frames: int, seed: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, self.codebook_size, (batch, frames, 8), generator=generator)


def listed(name: str) -> str:
    """The name in newer files, which the reference draws by, of a tensor of Kyutai's files."""
    if ".self_attn." not in name:
        return name
    return name.replace("in_proj_weight", "in_projs.0.weight").replace("out_proj.", "out_projs.0.")


def mimi_codec(config: MimiConfig) -> Codec:
    names = {listed(name) for name in mimi_shapes(config)}
    weights = mimi.prepare(OPS, drawn(mimi_shapes(config, names)), config)
    return Codec(
        lambda codes, state: mimi.decode(OPS, weights, config, codes, state),
        mimi.state_shapes(config),
        config.codebook_size,
    )


def detokenizer_codec(config: DetokenizerConfig) -> Codec:
    weights = detokenizer.prepare(OPS, drawn(detokenizer_shapes(config)), config)
    return Codec(
        lambda codes, state: detokenizer.decode(OPS, weights, config, codes, state),
        detokenizer.state_shapes(config),
        2048,
    )


@pytest.fixture(scope="module")
def tiny_mimi() -> Codec:
    return mimi_codec(MimiConfig(**golden_json("tiny_mimi")))


@pytest.fixture(scope="module")
def detokenizer_of_real_size() -> Codec:
    return detokenizer_codec(detokenizer_config(golden_json("detokenizer"), "detokenizer"))


@pytest.fixture(scope="module")
def tiny_detokenizer() -> Codec:
    """Layers of every kind, grouped queries, a window that a few frames fill."""
    values = {
        **golden_json("detokenizer"),
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "block_multiple_of": 8,
        "layer_types": ["conv", "sliding_attention", "conv", "full_attention"],
    }
    return detokenizer_codec(detokenizer_config(values, "tiny"))


@pytest.fixture(scope="module", params=["mimi", "detokenizer"])
def codec(request: pytest.FixtureRequest) -> Codec:
    found: Codec = request.getfixturevalue(f"tiny_{request.param}")
    return found


def golden_codes(name: str) -> torch.Tensor:
    return torch.from_numpy(GOLDEN[name].astype(np.int64))[None]


def ended(codes: torch.Tensor, frames: int = 1) -> torch.Tensor:
    """Codes with frames behind the end of the stream."""
    return torch.cat([codes, torch.full((len(codes), frames, 8), detokenizer.END)], 1)


def worst(ours: Any, golden: Any) -> float:
    ours, golden = np.asarray(ours), np.asarray(golden)
    assert ours.shape == golden.shape
    return float(np.abs(ours - golden).max())


# -- the reference's numbers ---------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [60, 1, 2, 5, 25])
def test_mimi_is_the_reference(tiny_mimi: Codec, chunk: int) -> None:
    """60 frames are 120 positions, six windows of 20."""
    pcm = tiny_mimi.stream(golden_codes("mimi_codes"), [chunk])
    assert worst(pcm[0, ::PCM_STEP], GOLDEN["mimi_pcm"]) < TOLERANCE


def test_mimi_of_real_size_is_the_reference() -> None:
    real = mimi_codec(MimiConfig())
    pcm = real.stream(golden_codes("mimi_real_codes"), [1, 2])
    assert worst(pcm[0], GOLDEN["mimi_real_pcm"]) < TOLERANCE


@pytest.mark.parametrize("chunk", [28, 1, 2, 5, 25])
def test_the_detokenizer_is_the_reference(detokenizer_of_real_size: Codec, chunk: int) -> None:
    """27 frames are 162 spectra, five windows of 30."""
    codes = ended(golden_codes("detokenizer_codes"), frames=3)  # the last chunk is whole
    pcm = detokenizer_of_real_size.stream(codes[:, : -(-28 // chunk) * chunk], [chunk])
    audio = pcm[0, LAG : LAG + 27 * FRAME]
    assert worst(audio[::PCM_STEP], GOLDEN["detokenizer_pcm"]) < TOLERANCE
    first, last = GOLDEN["detokenizer_ends"]
    assert worst(audio[:960], first) < TOLERANCE
    assert worst(audio[-960:], last) < TOLERANCE


# -- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [[1], [2], [5], [25], [3, 1, 7, 2]])
def test_a_stream_is_the_one_shot_decode(codec: Codec, chunks: list[int]) -> None:
    codes = codec.random(2, 31)
    whole = codec.stream(codes, [31])
    assert whole.abs().max() > 0.01
    assert worst(codec.stream(codes, list(chunks)), whole) < TOLERANCE


def test_rows_at_different_frames_are_those_alone(codec: Codec) -> None:
    """Streams that are 0, 1, 7 and 20 frames old go on as one batch."""
    codes, ages = codec.random(4, 24), (0, 1, 7, 20)
    states: list[State] = []
    for row, age in enumerate(ages):
        state = codec.zeros(1)
        if age:
            _, state = codec.decode(codes[row : row + 1, :age], state)
        states.append(state)
    together = {name: torch.cat([state[name] for state in states]) for name in codec.specs}
    next_codes = torch.stack([codes[row, age : age + 4] for row, age in enumerate(ages)])
    pcm, _ = codec.decode(next_codes, together)
    for row, age in enumerate(ages):
        alone = codec.stream(codes[row : row + 1, : age + 4], [age + 4])
        assert worst(pcm[row], alone[0, age * FRAME :]) < TOLERANCE


def test_a_state_is_complete_and_minimal(codec: Codec) -> None:
    """The audio is different without any one of its arrays."""
    codes = codec.random(1, 30)
    _, state = codec.decode(codes[:, :26], codec.zeros(1))
    assert {name: tuple(array.shape[1:]) for name, array in state.items()} == {
        name: spec.shape for name, spec in codec.specs.items()
    }
    expected, _ = codec.decode(codes[:, 26:], state)
    for name in codec.specs:
        if name == "start":  # rotations are relative: only a young stream needs it, see above
            continue
        lacking, _ = codec.decode(codes[:, 26:], {**state, name: torch.zeros_like(state[name])})
        assert (lacking - expected).abs().max() > 1e-5, name


def test_what_is_behind_the_end_does_not_change_what_is_before(codec: Codec) -> None:
    """Chunks of a fixed size are padded behind the end of a stream."""
    codes = codec.random(2, 9)
    whole = codec.stream(ended(codes, 1), [10])
    more = codec.stream(ended(codes, 7), [16])
    assert worst(more[:, : 9 * FRAME + LAG], whole[:, : 9 * FRAME + LAG]) < TOLERANCE


def test_impossible_codes_do_no_harm(codec: Codec) -> None:
    codes = codec.random(1, 4)
    codes[:, 2:] = 2048  # the frame that ends an answer's audio
    codes[:, 3] = 1 << 40
    pcm = codec.stream(codes, [4])
    assert pcm.isfinite().all()


def test_audio_is_bounded(codec: Codec) -> None:
    pcm = codec.stream(codec.random(1, 8), [3])
    assert pcm.abs().max() <= 1.0


def test_mimi_reads_the_names_of_newer_files() -> None:
    config = MimiConfig(**golden_json("tiny_mimi"))
    old = drawn(mimi_shapes(config))
    new = {listed(name): array for name, array in old.items()}
    assert mimi_shapes(config, new).keys() == new.keys() != old.keys()
    ours, theirs = mimi.prepare(OPS, old, config), mimi.prepare(OPS, new, config)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


# -- the detokenizer's ends ----------------------------------------------------------------------


def test_the_first_samples_of_a_stream_are_silence_to_be_dropped(tiny_detokenizer: Codec) -> None:
    pcm = tiny_detokenizer.stream(tiny_detokenizer.random(2, 3), [1])
    assert not pcm[:, :LAG].any()
    assert pcm[:, LAG : 2 * LAG].any()


def test_the_last_samples_come_with_the_frame_behind_the_end(tiny_detokenizer: Codec) -> None:
    codes = tiny_detokenizer.random(2, 5)
    pcm = tiny_detokenizer.stream(ended(codes, 1), [2])
    assert pcm[:, 5 * FRAME : 5 * FRAME + LAG].abs().max() > 1e-3
    # not what a longer stream has there: its next spectra are missing, and are not silence
    longer = torch.cat([codes, tiny_detokenizer.random(2, 1, seed=1)], 1)
    went_on = tiny_detokenizer.stream(longer, [6])
    assert worst(pcm[:, : 5 * FRAME], went_on[:, : 5 * FRAME]) < TOLERANCE
    assert (pcm - went_on)[:, 5 * FRAME : 5 * FRAME + LAG].abs().max() > 1e-3


def test_rows_of_a_batch_may_end_at_different_frames(tiny_detokenizer: Codec) -> None:
    codes = tiny_detokenizer.random(3, 6)
    lengths = (6, 3, 1)
    batch = ended(codes, 1)
    for row, length in zip(batch, lengths, strict=True):
        row[length:] = detokenizer.END
    together = tiny_detokenizer.stream(batch, [7])
    for row, length in enumerate(lengths):
        alone = tiny_detokenizer.stream(ended(codes[row : row + 1, :length]), [length + 1])
        stop = length * FRAME + LAG
        assert worst(together[row, :stop], alone[0, :stop]) < TOLERANCE


def test_the_end_of_an_answers_audio_ends_a_stream(tiny_detokenizer: Codec) -> None:
    """The model's own last frame, eight times 2048, does as well as END."""
    codes = ended(tiny_detokenizer.random(1, 4))
    theirs = torch.where(codes == detokenizer.END, 2048, codes)
    ours = tiny_detokenizer.stream(codes, [5])
    assert torch.equal(tiny_detokenizer.stream(theirs, [5]), ours)


# -- checkpoints ---------------------------------------------------------------------------------


def test_tensors_are_the_references() -> None:
    published = {
        part: {name: tuple(shape) for name, shape in golden_json("tensors")[part]}
        for part in ("mimi", "detokenizer")
    }
    assert mimi_shapes(MimiConfig(), published["mimi"]) == published["mimi"]
    config = detokenizer_config(golden_json("detokenizer"), "detokenizer")
    assert config.feed_forward_size == 2304
    assert detokenizer_shapes(config) == published["detokenizer"]


def test_newer_and_older_spellings_of_the_configuration_are_read() -> None:
    values = golden_json("detokenizer")
    expected = detokenizer_config(values, "detokenizer")
    newer = {**values, "rope_parameters": {"rope_theta": values.pop("rope_theta")}}
    assert detokenizer_config(newer, "detokenizer") == expected
    older = {**newer, "block_ff_dim": newer["intermediate_size"], "intermediate_size": 1}
    assert detokenizer_config(older, "detokenizer") == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [("conv_bias", True), ("layer_types", ["conv"]), ("layer_types", ["mamba"] * 8)],
)
def test_the_error_names_what_is_not_supported(key: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=key):
        detokenizer_config({**golden_json("detokenizer"), key: value}, "detokenizer")


def test_the_error_names_a_missing_key() -> None:
    values = golden_json("detokenizer")
    del values["sliding_window"]
    with pytest.raises(CheckpointError, match="sliding_window"):
        detokenizer_config(values, "detokenizer")
