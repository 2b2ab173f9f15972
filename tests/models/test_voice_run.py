"""The training run of the voice: its stages, where it goes on, and a few steps of it on the CPU."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from izwi_models.tiny.recipes import codec, run, talker
from izwi_models.tiny.recipes.speech import FRAME
from izwi_models.tiny.recipes.voices import all_voices

OPTIONS = argparse.Namespace(work="work", out="out", minutes=25.0, sentences=1000)
TEXTS = ("The house is near the river.", "We are going out.", "Call me.")


def value(stage: run.Stage, option: str) -> str:
    return stage.command[stage.command.index(option) + 1]


def test_the_codec_is_finished_before_the_talker_learns_its_codes() -> None:
    stages = run.plan(OPTIONS, {}, set(), gpus=4)
    assert [stage.name for stage in stages] == ["text", "speech", "codec", "talker", "figures"]
    assert "--decoder-only" not in stages[2].command
    assert sum(stage.seconds for stage in stages) <= 25 * 60 - 120


@pytest.mark.parametrize("gpus", [0, 1, 2, 4])
def test_every_gpu_has_a_process(gpus: int) -> None:
    trained = [stage for stage in run.plan(OPTIONS, {}, set(), gpus) if stage.seconds]
    for stage in trained:
        assert ("--nproc_per_node" in stage.command) == (gpus > 1)
        if gpus > 1:
            assert value(stage, "--nproc_per_node") == str(gpus)


def test_a_run_that_was_cut_off_goes_on_with_the_time_that_is_left(tmp_path: Path) -> None:
    whole = run.plan(OPTIONS, {}, set(), gpus=1)
    progress = run.Progress(tmp_path)
    progress.note(whole[0], 20.0, finished=True)
    progress.note(whole[1], 30.0, finished=True)
    progress.note(whole[2], 45.0, finished=False)
    progress.note(whole[2], 45.0, finished=False)
    again = run.Progress(tmp_path)
    rest = run.plan(OPTIONS, again.ran_s, again.finished, gpus=1)
    assert [stage.name for stage in rest] == ["codec", "talker", "figures"]
    assert rest[0].seconds == whole[2].seconds - 90
    assert rest[1].seconds == whole[3].seconds


def test_a_stage_that_fails_ends_the_run_and_is_not_finished(tmp_path: Path) -> None:
    progress = run.Progress(tmp_path)
    with pytest.raises(SystemExit, match="codec failed with status 3"):
        run.run(run.Stage("codec", (sys.executable, "-c", "raise SystemExit(3)")), progress)
    run.run(run.Stage("text", (sys.executable, "-c", "")), progress)
    assert run.Progress(tmp_path).finished == {"text"}


def test_files_that_are_too_large_are_named(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"12345")
    assert run.too_large(tmp_path) == []
    monkeypatch.setattr(run, "LARGEST_FILE", 4)
    assert run.too_large(tmp_path) == ["a.safetensors"]


def write_corpus(folder: Path, stem: str, frames: int = 34) -> None:
    """Three buzzes that are said to be sentences."""
    folder.mkdir(parents=True, exist_ok=True)
    at = np.arange(frames * FRAME) / 24_000
    buzz = sum(np.sin(2 * np.pi * 120 * n * at) / n for n in range(1, 9)) * (at > 0.2)
    samples = np.tile((4000 * buzz).astype(np.int16), len(TEXTS))
    samples.tofile(folder / f"{stem}.i16")
    np.save(folder / f"{stem}.phones.npy", np.ones(len(samples) // 480, np.uint8))
    rows = [(voice, text, frames * FRAME) for voice, text in enumerate(TEXTS)]
    (folder / f"{stem}.json").write_text(json.dumps(rows))


def test_a_few_steps_go_on_from_the_committed_checkpoint(tmp_path: Path, monkeypatch) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    for stem in ("train0000", "heldout"):
        write_corpus(work / "data", stem)
    run.begin(out)
    monkeypatch.setattr(talker, "all_voices", lambda: all_voices()[:12])  # each has a clip a step
    files = ("speech_tokenizer/model.safetensors", "model.safetensors")
    committed = [load_file(out / name) for name in files]
    options = argparse.Namespace(work=work, out=out, minutes=25.0, sentences=3)
    stages = {stage.name: stage for stage in run.plan(options, {}, set(), gpus=0)}
    small = {"codec": ("--batch", "0.25"), "talker": ("--positions", "56")}
    for recipe, before, name in zip((codec, talker), committed, files, strict=True):
        stage = recipe.__name__.rpartition(".")[2]
        command = [*stages[stage].command[2:], *small[stage], "--steps", "2"]
        monkeypatch.setattr(sys, "argv", command)
        recipe.main()
        after = load_file(out / name)
        assert after.keys() == before.keys()
        moved = [k for k in after if not torch.equal(after[k], before[k])]
        assert len(moved) > len(after) / 2
        trained = [k for k in moved if "codebook" not in k]  # these follow their vectors at once
        far = max(float((after[k].float() - before[k].float()).abs().max()) for k in trained)
        assert far < 0.01, "two steps are not a start from nothing"
    assert run.too_large(out) == []
