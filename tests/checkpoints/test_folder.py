"""A broken checkpoint folder is an error that names what is wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from izwi.backends.torch.weights import load_weights
from izwi.checkpoints.folder import parse_config, read_json
from izwi.errors import CheckpointError
from izwi.ops.ranks import Part

SHAPES: dict[str, tuple[int, ...]] = {"a.weight": (2, 3), "b.bias": (4,)}
TENSORS = {"a.weight": torch.ones(2, 3, dtype=torch.float16), "b.bias": torch.arange(4.0)}


def load(folder: Path) -> dict[str, torch.Tensor]:
    return load_weights(folder, SHAPES, device=torch.device("cpu"), dtype=torch.float32)


def test_single_and_sharded_files_are_the_same(tmp_path: Path) -> None:
    single, sharded = tmp_path / "single", tmp_path / "sharded"
    single.mkdir(), sharded.mkdir()
    save_file(TENSORS, single / "model.safetensors")
    for i, name in enumerate(TENSORS):
        save_file({name: TENSORS[name]}, sharded / f"model-{i}.safetensors")
    index = {"weight_map": {name: f"model-{i}.safetensors" for i, name in enumerate(TENSORS)}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    for folder in (single, sharded):
        weights = load(folder)
        assert {name: weight.dtype for name, weight in weights.items()} == dict.fromkeys(
            SHAPES, torch.float32
        )
        assert torch.equal(weights["b.bias"], torch.arange(4.0))
    (sharded / "model-1.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-1\.safetensors"):
        load(sharded)
    for broken in ("{}", "{"):
        (sharded / "model.safetensors.index.json").write_text(broken)
        with pytest.raises(CheckpointError, match="index"):
            load(sharded)


def test_one_file_of_a_folder_may_be_read(tmp_path: Path) -> None:
    save_file({"c": torch.ones(1)}, tmp_path / "model.safetensors")
    save_file(TENSORS, tmp_path / "codec.safetensors")
    file = tmp_path / "codec.safetensors"
    weights = load_weights(file, SHAPES, device=torch.device("cpu"), dtype=torch.float32)
    assert weights.keys() == TENSORS.keys()
    with pytest.raises(CheckpointError, match="'c'"):
        load(tmp_path)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_rank_reads_its_part_of_a_tensor(tmp_path: Path, axis: int) -> None:
    whole = {"a.weight": torch.arange(24.0).reshape(4, 6), "b.bias": torch.arange(4.0)}
    save_file(whole, tmp_path / "model.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in whole.items()}

    def read(parts: dict[str, Part]) -> dict[str, torch.Tensor]:
        return load_weights(
            tmp_path, shapes, device=torch.device("cpu"), dtype=torch.float32, parts=parts
        )

    parts = [Part(axis, start, start + 2) for start in range(0, 4 + 2 * axis, 2)]
    found = [read({"a.weight": part})["a.weight"] for part in parts]
    assert torch.equal(torch.cat(found, axis), whole["a.weight"])
    assert all(part.is_contiguous() for part in found), "as products want them"
    assert torch.equal(read({"a.weight": Part(axis, 0, 2)})["b.bias"], whole["b.bias"])


def test_an_index_may_take_a_part_of_another_checkpoint(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir(), ours.mkdir()
    save_file({**TENSORS, "b.bias": torch.zeros(7)}, theirs / "model.safetensors")
    save_file({"b.bias": TENSORS["b.bias"]}, ours / "own.safetensors")
    files = {"a.weight": "../theirs/model.safetensors", "b.bias": "own.safetensors"}
    index = ours / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    weights = load(ours)
    assert torch.equal(weights["a.weight"], torch.ones(2, 3))
    assert torch.equal(weights["b.bias"], torch.arange(4.0))
    index.write_text(json.dumps({"weight_map": {"a.weight": files["a.weight"]}}))
    with pytest.raises(CheckpointError, match=r"b\.bias"):  # theirs is not meant, and too long
        load(ours)


@pytest.mark.parametrize(
    "name",
    [
        "../../model.safetensors",
        "../../../etc/passwd",
        "/etc/passwd",
        "/tmp/model.safetensors",
        "../model.safetensors",
        ".././model.safetensors",
        "..\\..\\model.safetensors",
        "a/../../model.safetensors",
        "config.json",
        "a\0.safetensors",
        "",
        7,
        None,
        ["model.safetensors"],
    ],
)
def test_an_index_names_no_other_files(name: object, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    for place in (tmp_path, folder.parent, folder):
        save_file(TENSORS, place / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match="it may name safetensors files of this folder"):
        load(folder)


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": "\\ud800"}',
        b'{"a": "\\ud800x", "\\udfff": 1}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a":' + b"[" * 100_000,
        b"\xff\xfe{}",
        b"\0" * 100,
    ],
)
def test_files_that_are_no_json_are_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config.json is not JSON") as refused:
        read_json(path)
    assert len(str(refused.value)) < 600


def test_a_file_larger_than_any_json_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(CheckpointError, match="is larger than"):
        read_json(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b.bias": None}, r"missing tensor 'b\.bias'"),
        ({"c": torch.ones(1)}, "unexpected tensor 'c'"),
        ({"a.weight": torch.ones(3, 2)}, r"'a\.weight' is \(3, 2\), expected \(2, 3\)"),
    ],
)
def test_the_error_names_a_wrong_tensor(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    tensors = {k: v for k, v in {**TENSORS, **change}.items() if v is not None}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


def test_no_file_and_a_cut_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load(tmp_path)
    save_file(TENSORS, tmp_path / "model.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-9])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load(tmp_path)


@dataclass(frozen=True)
class Inner:
    width: int
    rate: float


@dataclass(frozen=True)
class Outer:
    inner: Inner
    names: dict[str, int]
    ratios: tuple[int, ...]
    limit: int | None = None


GOOD = {"inner": {"width": 3, "rate": 1}, "names": {"a": 1}, "ratios": [2, 2], "more": "ignored"}


def test_config_is_read_and_the_error_names_a_missing_key() -> None:
    config = parse_config(Outer, GOOD, "config.json")
    assert config == Outer(Inner(3, 1.0), {"a": 1}, (2, 2))
    with pytest.raises(CheckpointError, match=r"config\.json\.inner lacks the key 'rate'"):
        parse_config(Outer, {**GOOD, "inner": {"width": 3}}, "config.json")
    with pytest.raises(CheckpointError, match=r"config\.json\.inner\.width must be int, got 'x'"):
        parse_config(Outer, {**GOOD, "inner": {"width": "x", "rate": 1}}, "config.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ratios": [2, "x"]}, r"config\.json\.ratios\[1\] must be int, got 'x'"),
        ({"ratios": 3}, r"config\.json\.ratios must be array, got 3"),
        ({"names": {"a": 1.0}}, r"config\.json\.names\[\.\.\.\] must be int, got \{'a': 1\.0\}"),
        ({"inner": {"width": True, "rate": 1}}, "inner.width must be int, got True"),
        ({"inner": {"width": 3.0, "rate": 1}}, "inner.width must be int, got 3.0"),
        ({"inner": {"width": 3, "rate": False}}, "inner.rate must be float, got False"),
        ({"inner": {"width": 3, "rate": "1"}}, "inner.rate must be float, got '1'"),
        ({"inner": [3, 1]}, r"config\.json\.inner must be object, got \[3, 1\]"),
        ({"limit": "3"}, r"limit must be int \| null, got '3'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_never_converted(change: object, message: str) -> None:
    assert isinstance(change, dict)
    with pytest.raises(CheckpointError, match=message):
        parse_config(Outer, {**GOOD, **change}, "config.json")
    with pytest.raises(CheckpointError, match=r"config\.json must be an object"):
        parse_config(Outer, [change], "config.json")  # type: ignore[arg-type]


def test_the_error_names_a_file_of_broken_json(tmp_path: Path) -> None:
    for text in (None, "{", "[]", "[" * 100_000):
        path = tmp_path / "config.json"
        if text is not None:
            path.write_text(text)
        with pytest.raises(CheckpointError, match=r"config\.json"):
            read_json(path)


@dataclass(frozen=True)
class Stack:
    num_hidden_layers: int
    num_attention_heads: int


@dataclass(frozen=True)
class Stacks:
    text: Stack


@pytest.mark.parametrize(
    ("layers", "heads", "message"),
    [
        (10**18, 2, "config.json.text.num_hidden_layers must be between 0 and 1024, got 1000000"),
        (-1, 2, "config.json.text.num_hidden_layers must be between 0 and 1024, got -1"),
        (2, 0, "config.json.text.num_attention_heads must be at least 1, got 0"),
    ],
)
def test_numbers_that_no_model_has_are_refused(layers: int, heads: int, message: str) -> None:
    def read(num_layers: int, num_heads: int) -> Stacks:
        stack = {"num_hidden_layers": num_layers, "num_attention_heads": num_heads}
        return parse_config(Stacks, {"text": stack}, "config.json")

    with pytest.raises(CheckpointError, match=message):
        read(layers, heads)
    assert read(1024, 1).text == Stack(1024, 1)
