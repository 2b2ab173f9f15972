"""`izwi models add`, `izwi pull` and `izwi doctor` with checkpoints of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from izwi.checkpoints.description import describe
from izwi.checkpoints.folder import read_json
from tests.checkpoints.formats.packing import write_config
from tests.models.test_published_formats import write_pair
from tests.models.tiny_asr import write_tiny_asr
from tests.models.tiny_tts import write_tiny_tts


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return write_pair(tmp_path, "gptq-4")[0]


def test_a_folder_is_checked_and_named(cli: Any, packed: Path) -> None:
    said = cli("models", "add", str(packed), "--name", "mine").stdout
    assert said.startswith("mine\tqwen3, GPTQ, 4 bits in groups of 32, 5.0 bits a weight")
    listed = cli("models").stdout.splitlines()
    assert any(line.startswith("mine\t") and "MB" in line for line in listed)
    entries = [json.loads(line) for line in cli("models", "--json").stdout.splitlines()]
    size = (packed / "model.safetensors").stat().st_size
    assert [e["bytes"] for e in entries if e["name"] == "mine"] == [size]
    assert cli("models", "remove", "mine").stdout == "mine\tremoved\n"
    assert "no checkpoint was added as 'mine'" in cli("models", "remove", "mine", code=2).stderr
    assert not any(line.startswith("mine") for line in cli("models").stdout.splitlines())


def test_broken_checkpoints_and_bad_names_are_refused(cli: Any, packed: Path) -> None:
    assert "neither a checkpoint's" in cli("models", "add", "nothing", code=1).stderr
    add = ("models", "add", str(packed), "--name")
    assert "is an embedded checkpoint" in cli(*add, "izwi-tiny-tts", code=2).stderr
    assert "name must have only letters" in cli(*add, "a/b", code=2).stderr
    tensors = load_file(packed / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.qzeros"]
    save_file(tensors, packed / "model.safetensors")
    said = cli(*add, "mine", code=1).stderr
    assert "'model.layers.0.mlp.up_proj.qweight' has no tensor '.qzeros' beside it" in said
    assert "mine" not in cli("models").stdout


def test_doctor_says_what_a_checkpoint_is_and_whether_it_fits(cli: Any, packed: Path) -> None:
    report = json.loads(cli("doctor", "--json", "--device", "cpu", "--model", str(packed)).stdout)
    found = {(f["area"], f["name"]): f["detail"] for f in report["findings"]}
    assert found["checkpoints", "packed"].startswith("qwen3, GPTQ, 4 bits in groups of 32")
    assert "weights" in found["memory", "packed"]
    values = read_json(packed / "config.json")
    values["quantization_config"]["bits"] = 3
    write_config(packed, values)
    said = cli("doctor", "--device", "cpu", "--model", str(packed), code=1).stdout
    assert "GPTQ with 3 bits is not supported: 4 or 8 are" in said


def test_other_families_are_described(tmp_path: Path) -> None:
    assert str(describe(write_tiny_tts(tmp_path / "tts"))).startswith("qwen3_tts, float32, ")
    assert str(describe(write_tiny_asr(tmp_path / "asr"))).startswith("qwen3_asr, float32, ")


def test_pull_asks_for_a_hub_id_and_a_file(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is not a hub id such as org/name" in cli("pull", "nothing", code=2).stderr
    assert "--name needs --file" in cli("pull", "org/m", "--name", "mine", code=2).stderr
    asked = {}

    def fetch(hub_id: str, *, offline: bool, report: Any) -> Path:
        asked[hub_id] = offline
        return Path("/cache/m")

    monkeypatch.setattr("izwi.checkpoints.hub.fetch", fetch)
    assert cli("pull", "org/m", "--offline").stdout == "org/m\t/cache/m\n"
    assert asked == {"org/m": True}


def test_pull_fetches_one_file_and_names_it(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gguf")
    from tests.checkpoints.test_gguf import write_gguf

    path, _ = write_gguf(tmp_path, ("Q4_0",))
    asked = []

    def fetch_file(hub_id: str, pattern: str, folder: Path, **_: Any) -> Path:
        asked.append((hub_id, pattern, folder))
        return path

    monkeypatch.setattr("izwi.checkpoints.hub.fetch_file", fetch_file)
    said = cli("pull", "org/m-GGUF", "--file", "*Q4_K_M.gguf").stdout
    assert said.startswith("tiny.Q4_K_M\tqwen3, GGUF, Q4_0, ")
    assert [(i, p) for i, p, _ in asked] == [("org/m-GGUF", "*Q4_K_M.gguf")]
    assert cli("models").stdout.startswith("tiny.Q4_K_M\t")
    assert asked[0][2].name == "files"
    assert cli("models", "add", str(path), "--name", "again").stdout.startswith(
        "again\tqwen3, GGUF"
    )
