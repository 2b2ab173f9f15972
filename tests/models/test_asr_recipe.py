"""The training of the transcriber: what it hears where nobody speaks, and what it leaves alone."""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from izwi_models.tiny.recipes import augment
from izwi_models.tiny.recipes.asr import AsrTrainer
from izwi_models.tiny.recipes.data import Corpus
from tests.models.test_voice_run import write_corpus

EMBEDDED = Path(augment.__file__).parents[1] / "izwi-tiny-asr"


def test_only_the_named_tensors_are_trained(tmp_path: Path) -> None:
    write_corpus(tmp_path / "data", "train-0")
    out = tmp_path / "asr"
    shutil.copytree(EMBEDDED, out)
    options = argparse.Namespace(
        out=out,
        layers=None,
        seed=0,
        own=re.compile(r"text|thinker\.model\.layers\.3\.mlp|phone_head"),
    )
    device = torch.device("cpu")
    trainer = AsrTrainer(options, Corpus(tmp_path / "data", "train", device), device)
    trainer.optimizer.rate.fill_(0.5)
    for _ in range(2):
        trainer.hold(torch.arange(2), 40, 12)
        trainer.optimizer.apply()
    trainer.save(out)
    before, after = (load_file(folder / "model.safetensors") for folder in (EMBEDDED, out))
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {
        f"thinker.model.layers.3.mlp.{part}_proj.weight" for part in ("up", "gate", "down")
    }


def test_beeps_are_switched_on_and_off() -> None:
    torch.manual_seed(1)
    sound = augment._beeps(64, 4 * augment.RATE, torch.device("cpu"))
    assert sound.isfinite().all()
    windows = augment.level(sound.view(-1, 400)).view(64, -1)
    quiet = (windows < 0.05).float().mean(1)
    changes = ((windows[:, 1:] < 0.05) != (windows[:, :-1] < 0.05)).sum(1)
    assert (quiet < 0.95).all()
    assert ((quiet > 0.1) & (changes >= 2)).float().mean() > 0.5
