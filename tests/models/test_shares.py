"""The parts of a decoder that ranks have: together they are the whole, or an error says why not."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from izwi.backends.choice import open_backend
from izwi.errors import InvalidRequest
from izwi.model.layers import KVSpec
from izwi.ops.ranks import ALONE, Alone, Part, RankPlace
from izwi_models.lfm2_audio import FAMILY as S2S
from izwi_models.qwen3.config import DecoderConfig, parts_of, share_of, tensor_shapes
from izwi_models.qwen3.token_model import head_part
from izwi_models.qwen3_chat import FAMILY as CHAT
from izwi_models.qwen3_chat.config import HEAD, read_config
from tests.models.tiny_chat import UNTIED, write_tiny_chat
from tests.models.tiny_lfm2_audio import write_tiny_lfm2_audio

LARGE = DecoderConfig(6, 320, 2, 64, 8, 2, 1e-6, 1e6)  # with the heads of Qwen3-32B


class Rank(Alone):
    """A rank that never meets the others."""

    def __init__(self, index: int, count: int):
        self.index, self.count = index, count  # type: ignore[assignment]


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16, 32])
def test_parts_are_the_whole(count: int) -> None:
    shapes = tensor_shapes(LARGE, "m.")
    covered = {name: np.zeros(shape[:2], np.int64) for name, shape in shapes.items()}
    for index in range(count):
        rank = Rank(index, count)
        share, parts = share_of(LARGE, rank), parts_of(LARGE, rank, "m.")
        expected = tensor_shapes(share, "m.")  # what the model's own code computes with
        for name, shape in shapes.items():
            part = parts.get(name, Part(0, 0, shape[0]))
            assert part.shape(shape) == expected[name], name
            covered[name][part.index] += 1
        assert share.attention.num_heads // share.attention.num_kv_heads >= 1
    for name, times in covered.items():
        shared = count if "norm" in name else 1
        if ".k_proj" in name or ".v_proj" in name:
            shared = max(1, count // LARGE.num_key_value_heads)
        assert (times == shared).all(), name


@pytest.mark.parametrize("count", [2, 8, 16])
def test_a_rank_has_the_keys_of_its_queries(count: int) -> None:
    group = LARGE.num_attention_heads // LARGE.num_key_value_heads
    for index in range(count):
        rank = Rank(index, count)
        parts, share = parts_of(LARGE, rank, ""), share_of(LARGE, rank)
        queries, keys = (parts[f"layers.0.self_attn.{name}_proj.weight"] for name in "qk")
        first, own = queries.start // LARGE.head_dim, share.num_attention_heads
        for head in range(own):  # attention divides a rank's queries evenly over its keys
            local = head // (own // share.num_key_value_heads)
            assert keys.start // LARGE.head_dim + local == (first + head) // group


@pytest.mark.parametrize(
    ("count", "change", "message"),
    [
        (3, {}, "64 query heads"),
        (2, {"num_attention_heads": 14, "num_key_value_heads": 7}, "7 key and value heads"),
        (2, {"intermediate_size": 321}, "321 intermediate_size"),
        (128, {}, "64 query heads"),
    ],
)
def test_what_ranks_cannot_share_is_refused(
    count: int, change: dict[str, int], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"{count} ranks cannot share.*{message}"):
        share_of(replace(LARGE, **change), Rank(0, count))


def test_heads_of_the_vocabulary_are_split_if_they_can(tmp_path: Path) -> None:
    config = read_config(write_tiny_chat(tmp_path / "chat", UNTIED))
    assert head_part(config, Rank(3, 4)) == Part(0, 384, 512)
    assert head_part(config, Rank(0, 3)) is None, "every rank has all of it"
    assert head_part(config, ALONE) is None
    sizes = [CHAT.read_sizes(tmp_path / "chat", Rank(1, count)) for count in (1, 2)]
    assert [one.weights[0][HEAD] for one in sizes] == [(512, 48), (256, 48)]
    assert [KVSpec.from_layers(one.layers).num_kv_heads for one in sizes] == [2, 1]


def test_a_family_that_cannot_be_split_says_so(tmp_path: Path) -> None:
    folder = write_tiny_lfm2_audio(tmp_path / "s2s")
    with pytest.raises(InvalidRequest, match="LFM2-Audio runs on one device"):
        S2S.read_sizes(folder, Rank(0, 2))


def test_every_part_ends_where_the_next_begins() -> None:
    parts = [Part.at(Rank(index, 4), 1, 20) for index in range(4)]
    assert [(one.stop, other.start) for one, other in pairwise(parts)] == [
        (5, 5),
        (10, 10),
        (15, 15),
    ]
    assert torch.arange(40).reshape(2, 20)[parts[1].index].tolist()[1] == [25, 26, 27, 28, 29]
    with pytest.raises(ValueError, match="21 cannot be divided by 4"):
        Part.at(Rank(0, 4), 0, 21)


def test_other_devices_have_no_ranks(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="CUDA or a CPU"):
        open_backend("mlx", place=RankPlace(0, 2, str(tmp_path / "store")))
