"""LFM2-Audio's language side against the reference's numbers in tests/golden/lfm2.npz."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from izwi.backends.torch.backend import torch_backend
from izwi.errors import CheckpointError
from izwi_models.lfm2_audio import backbone, depthformer, embedding
from izwi_models.lfm2_audio.config import (
    LFM2AudioConfig,
    checked_config,
    tensor_shapes,
    unused_shapes,
)
from izwi_models.lfm2_audio.pattern import Blocks, Mode, TrackIndex, first_turn, next_turn
from izwi_models.lfm2_audio.prompt import NOTHING
from tests.models.lfm2_loop import LoopContext
from tests.models.tiny_lfm2_audio import CALM, LOUD, REAL, TINY, tiny_weights

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "lfm2.npz")
CASES: list[dict[str, Any]] = json.loads(str(GOLDEN["cases"]))
POSITION_STEP = 3
OPS = torch_backend("cpu").ops
CONFIG = checked_config(TINY, "config.json")


class Loop:
    """One answer without the engine: the prompt, then entry by entry, greedily."""

    def __init__(self, weights: dict[str, Any], config: LFM2AudioConfig):
        self._weights, self._config = weights, config
        self._context = LoopContext()

    def run(self, x: Any) -> Any:
        """States of the next positions: (positions, hidden) -> (positions, hidden)."""
        self._context.extend(x.shape[0])
        return backbone.hidden_states(OPS, self._weights, self._config.lfm, x, self._context)

    def text(self, hidden: Any) -> tuple[int, ...]:
        return (int(self.logits(hidden)[-1].argmax()),)

    def logits(self, hidden: Any) -> Any:
        return OPS.linear(hidden, self._weights[backbone.EMBEDDING])

    def frames(self, hidden: Any) -> Any:
        def pick(logits: Any, _: int) -> Any:
            return logits.argmax(-1)

        return depthformer.draw_frames(OPS, self._weights, self._config, hidden, pick)

    def embed(self, ids: tuple[int, ...]) -> Any:
        return embedding.embed_inputs(OPS, self._weights, torch.tensor([inputs_of(ids)]))


def inputs_of(ids: tuple[int, ...] | list[int]) -> list[int]:
    return [ids[0], *[NOTHING] * 8] if len(ids) == 1 else [NOTHING, *ids]


def packed(case: dict[str, Any]) -> dict[str, Any]:
    drawn = tiny_weights(tensor_shapes(CONFIG), case["seed"], LOUD if case["is_loud"] else CALM)
    weights = {name: torch.from_numpy(weight) for name, weight in drawn.items()}
    weights = embedding.pack(OPS, weights, CONFIG)
    weights = backbone.pack(OPS, weights, CONFIG.lfm)
    return depthformer.pack(OPS, weights, CONFIG)


@pytest.fixture(scope="module")
def loops() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    return [packed(case) for case in CASES]


def prompt_inputs(weights: dict[str, Any], n: int) -> Any:
    parts = []
    for kind, what in CASES[n]["prompt"]:
        if kind == "audio":
            parts.append(torch.from_numpy(GOLDEN[f"audio_{n}"]))
        else:
            rows = [[i] for i in what] if kind == "text" else what
            ids = torch.tensor([inputs_of(row) for row in rows])
            parts.append(embedding.embed_inputs(OPS, weights, ids))
    return torch.cat(parts)


@pytest.mark.parametrize("n", range(len(CASES)))
def test_the_prompt_gives_the_references_states_and_logits(loops, n):
    loop = Loop(loops[n], CONFIG)
    hidden = loop.run(prompt_inputs(loops[n], n))[::POSITION_STEP]
    np.testing.assert_allclose(hidden.numpy(), GOLDEN[f"hidden_{n}"], atol=1e-4, rtol=0)
    np.testing.assert_allclose(
        loop.logits(hidden).numpy(), GOLDEN[f"logits_{n}"], atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("n", range(len(CASES)))
def test_a_state_gives_the_references_frame(loops, n):
    frames = Loop(loops[n], CONFIG).frames(torch.from_numpy(GOLDEN[f"hidden_{n}"]))
    expected = GOLDEN[f"frame_{n}"].copy()
    expected[expected[:, 0] == 2048] = 2048  # generation does so, not the function that draws
    assert frames.tolist() == expected.tolist()


@pytest.mark.parametrize("most", [72, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(
    "n", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, len(CASES)))]
)
def test_an_answer_has_the_references_entries(loops, n, mode, most):
    """By themselves; `test_lfm2_engine.py` compares more, at night all, through the engine."""
    expected = [tuple(ids) for ids in CASES[n]["runs"][mode.value]["entries"][:most]]
    loop, blocks = Loop(loops[n], CONFIG), Blocks(6, 12)
    hidden, turn = loop.run(prompt_inputs(loops[n], n)), first_turn(blocks)
    entries: list[tuple[int, ...]] = []
    for _ in expected:
        if turn.track is TrackIndex.TEXT:
            ids = loop.text(hidden)
        else:
            ids = tuple(loop.frames(hidden[-1:])[0].tolist())
        entries.append(ids)
        turn = next_turn(mode, blocks, turn, ids)
        hidden = loop.run(loop.embed(ids))
    assert entries == expected


def test_the_goldens_meet_what_is_special():
    interleaved = [case["runs"]["interleaved"]["entries"] for case in CASES]
    sequential = [case["runs"]["sequential"]["entries"] for case in CASES]
    assert all(len(entries) >= 200 for entries in [*interleaved, *sequential])
    first = [{ids[0] for ids in entries} for entries in interleaved]
    assert sum({130, 2048} <= ids for ids in first) >= 2
    assert any({128, 2048} <= {ids[0] for ids in entries} for entries in sequential)
    # text and frames in turns all the way, by count alone
    lengths = ["".join("T" if len(ids) == 1 else "A" for ids in e) for e in interleaved]
    assert any(("T" * 6 + "A" * 12) * 5 in line for line in lengths)


def test_a_prompt_in_pieces_gives_the_same_states(loops):
    x = prompt_inputs(loops[0], 0)
    whole = Loop(loops[0], CONFIG).run(x)
    for sizes in ([1] * len(x), [2, 1, 5, len(x) - 8], [len(x) - 1, 1]):
        loop = Loop(loops[0], CONFIG)
        pieces = torch.cat([loop.run(piece) for piece in x.split(sizes)])
        np.testing.assert_allclose(pieces.numpy(), whole.numpy(), atol=2e-6, rtol=0)


# -- configurations --------------------------------------------------------------------------
def test_published_sizes_have_the_references_tensors():
    config = checked_config(REAL, "config.json")
    ours = tensor_shapes(config)
    everything = ours | unused_shapes(config)
    published = {name: tuple(shape) for name, shape in json.loads(str(GOLDEN["shapes"])).items()}
    assert everything == published
    count = sum(math.prod(shape) for shape in ours.values())
    assert round(count / 1e6, 1) == 1305.1


def changed(path: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(TINY)
    *parents, last = path.split(".")
    place = config
    for parent in parents:
        place = place[parent]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return config


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("codebooks", None, "codebooks"),
        ("codebooks", 0, "codebooks"),
        ("interleaved_n_text", 0, "interleaved_n_text"),
        ("interleaved_n_audio", -1, "interleaved_n_audio"),
        ("encoder", None, "encoder"),
        ("lfm", [], "lfm"),
        ("lfm.hidden_size", None, "hidden_size"),
        ("lfm.num_attention_heads", 0, "num_attention_heads"),
        ("lfm.vocab_size", 130, "vocab_size"),
        ("lfm.layer_types", ["conv"], "layer_types"),
        ("lfm.layer_types", ["conv"] * 4 + ["sliding_attention"], "layer_types"),
        ("lfm.layer_types", None, "layer_types"),
        ("lfm.block_ff_dim", None, "block_ff_dim"),
        ("lfm.conv_bias", True, "conv_bias"),
        ("lfm.conv_L_cache", 1, "conv_L_cache"),
        ("lfm.norm_eps", "small", "norm_eps"),
        ("depthformer.dim", 96, "depthformer.dim"),
        ("depthformer.tie", None, "tie"),
    ],
)
def test_a_configuration_that_we_do_not_compute_is_refused(path, value, message):
    with pytest.raises(CheckpointError) as reported:
        checked_config(changed(path, value), "config.json")
    assert message in str(reported.value)


def test_older_and_newer_spellings_mean_the_same():
    lfm = dict(TINY["lfm"])
    for key in ("layer_types", "block_ff_dim", "rope_theta", "conv_L_cache"):
        del lfm[key]
    lfm |= {"full_attn_idxs": [2, 4], "intermediate_size": 96}
    lfm |= {"rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}}
    assert checked_config(TINY | {"lfm": lfm}, "config.json") == CONFIG
    exact = TINY["lfm"] | {"block_auto_adjust_ff_dim": False, "block_ff_dim": 64}
    assert checked_config(TINY | {"lfm": exact}, "config.json") == CONFIG
    assert CONFIG.lfm.ffn_size == 64
    assert checked_config(REAL, "config.json").lfm.ffn_size == 8192
    assert checked_config(REAL, "config.json").depthformer.ffn_size == 2816
