"""The training run of the voice: its stages, where it goes on, and a few steps of it on the CPU."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from izwi_models.tiny.recipes import asr, codec, run, talker
from izwi_models.tiny.recipes.codes import encode_corpus, settle_silence
from izwi_models.tiny.recipes.data import Corpus
from izwi_models.tiny.recipes.harness import divergence
from izwi_models.tiny.recipes.people.kokoro_speech import UNLABELLED
from izwi_models.tiny.recipes.phone_classifier import PhoneClassifier
from izwi_models.tiny.recipes.speech import FRAME, LABEL, PHONES
from izwi_models.tiny.recipes.voices import all_voices

VOICE = ["text", "speech", "codec", "decoder", "talker", "figures"]
OPTIONS = argparse.Namespace(
    work=Path("work"), out=Path("out"), minutes=25.0, sentences=1000, stages=VOICE
)
TEXTS = ("The house is near the river.", "We are going out.", "Call me.")


def value(stage: run.Stage, option: str) -> str:
    return stage.command[stage.command.index(option) + 1]


def test_the_codec_stage_ends_before_the_talker_stage() -> None:
    stages = run.plan(OPTIONS, {}, set(), gpus=4)
    assert [stage.name for stage in stages] == VOICE
    assert ["--decoder-only" in stage.command for stage in stages[2:4]] == [False, True]
    one_after_another = [stage.seconds for stage in stages if stage.name != "decoder"]
    assert sum(one_after_another) <= 25 * 60 - 120
    first, voice, decoder = run.sequences(stages)
    assert [stage.name for stage in first] == ["text", "speech"]
    assert [stage.name for stage in voice] == ["codec", "talker", "figures"]
    assert [stage.after for stage in (*decoder, voice[-1])] == ["codec", "decoder"]
    assert decoder[0].seconds == voice[1].seconds


def test_without_a_talker_the_decoder_gets_the_time_that_the_codec_leaves() -> None:
    stages = ["codec", "decoder"]
    options = argparse.Namespace(**{**vars(OPTIONS), "stages": stages})
    codec_stage, decoder = run.plan(options, {}, set(), gpus=1)
    assert codec_stage.seconds + decoder.seconds == pytest.approx(25 * 60 - 50)
    assert codec_stage.seconds < decoder.seconds


def test_without_the_codec_stage_the_talker_gets_its_time() -> None:
    stages = ["speech", "talker"]
    options = argparse.Namespace(**{**vars(OPTIONS), "stages": stages, "minutes": 7.0})
    left = run.plan(options, {}, set(), gpus=1)
    assert [stage.name for stage in left] == stages
    assert left[1].seconds == pytest.approx(7 * 60 - 110)
    first, *beside = run.sequences(left)
    assert [stage.name for stage in first] == ["speech"]
    assert [[stage.name for stage in row] for row in beside] == [["talker"]]


@pytest.mark.parametrize("gpus", [0, 1, 2, 4])
def test_training_starts_a_process_for_each_gpu(gpus: int) -> None:
    trained = {stage.name: stage for stage in run.plan(OPTIONS, {}, set(), gpus) if stage.seconds}
    alone = f"CUDA_VISIBLE_DEVICES={gpus - 1}"
    assert (alone in trained["decoder"].command) == (gpus > 1)
    counts = {"codec": gpus, "talker": gpus - 1 if gpus > 1 else gpus, "decoder": 1}
    for name, count in counts.items():
        assert ("--nproc_per_node" in trained[name].command) == (count > 1)
        if count > 1:
            assert value(trained[name], "--nproc_per_node") == str(count)


def test_a_stage_waits_for_one_in_another_list(tmp_path: Path) -> None:
    made = tmp_path / "made"
    make = f"import time, pathlib; time.sleep(0.5); pathlib.Path({str(made)!r}).touch()"
    read = f"import pathlib; pathlib.Path({str(made)!r}).unlink()"
    codec_stage = run.Stage("codec", (sys.executable, "-c", make))
    decoder = run.Stage("decoder", (sys.executable, "-c", read), after="codec")
    progress = run.StageProgress(tmp_path)
    run.run([[codec_stage], [decoder]], progress)
    assert run.StageProgress(tmp_path).finished == {"codec", "decoder"}


def test_an_interrupted_run_continues_with_the_remaining_time(tmp_path: Path) -> None:
    whole = run.plan(OPTIONS, {}, set(), gpus=1)
    progress = run.StageProgress(tmp_path)
    progress.note(whole[0], 20.0, finished=True)
    progress.note(whole[1], 30.0, finished=True)
    progress.note(whole[2], 45.0, finished=False)
    progress.note(whole[2], 45.0, finished=False)
    again = run.StageProgress(tmp_path)
    rest = run.plan(OPTIONS, again.ran_s, again.finished, gpus=1)
    assert [stage.name for stage in rest] == VOICE[2:]
    assert rest[0].seconds == whole[2].seconds - 90
    assert rest[2].seconds == whole[4].seconds


def test_a_failed_stage_ends_the_run_and_is_not_recorded_as_finished(tmp_path: Path) -> None:
    progress = run.StageProgress(tmp_path)
    with pytest.raises(SystemExit, match="codec failed with status 3"):
        run.run([[run.Stage("codec", (sys.executable, "-c", "raise SystemExit(3)"))]], progress)
    run.run([[run.Stage("text", (sys.executable, "-c", ""))]], progress)
    assert run.StageProgress(tmp_path).finished == {"text"}


def test_independent_stages_run_at_the_same_time(tmp_path: Path) -> None:
    meet = (  # each waits for the other's file
        "import sys, time, pathlib; mine, other = map(pathlib.Path, sys.argv[1:])\n"
        "mine.touch()\n"
        "while not other.exists(): time.sleep(0.01)"
    )
    files = (str(tmp_path / "a"), str(tmp_path / "b"))
    talker_stage = run.Stage("talker", (sys.executable, "-c", meet, *files))
    asr_stage = run.Stage("asr", (sys.executable, "-c", meet, *reversed(files)))
    after = run.Stage("figures", (sys.executable, "-c", ""))
    progress = run.StageProgress(tmp_path)
    run.run([[talker_stage, after], [asr_stage]], progress)
    assert run.StageProgress(tmp_path).finished == {"talker", "asr", "figures"}


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
    words = [[0, 200.0, 900.0], [len(TEXTS[0]) - 6, 900.0, 1500.0]]
    spoken = [words, [[0, 200.0, 800.0]], [[0, 200.0, 500.0], [5, 500.0, 900.0]]]
    (folder / f"{stem}.words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in spoken))


def note_share(recipe, shares: list[float]):
    """Let a recipe's rate be what it was, and note at which shares it was asked for."""
    rate = recipe.learning_rate

    def noted(share: float, step: int, peak: float) -> float:
        shares.append(share)
        return rate(share, step, peak)

    return noted


@pytest.mark.slow
def test_training_continues_from_the_committed_checkpoints(tmp_path: Path, monkeypatch) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    for stem in ("train0000", "heldout"):
        write_corpus(work / "data", stem)
    run.begin(out)
    files = {
        codec: f"{run.TTS}/speech_tokenizer/model.safetensors",
        talker: f"{run.TTS}/model.safetensors",
    }
    committed = {recipe: load_file(out / name) for recipe, name in files.items()}
    stages = ["codec", "talker"]
    options = argparse.Namespace(work=work, out=out, minutes=25.0, sentences=3, stages=stages)
    plan = {stage.name: stage for stage in run.plan(options, {}, set(), gpus=0)}
    small = {
        "codec": ("--batch", "0.25"),
        "talker": ("--positions", "56", "--anchor", "1"),
    }
    for recipe, name in files.items():
        stage, before = recipe.__name__.rpartition(".")[2], committed[recipe]
        command = [*plan[stage].command[2:], *small[stage], "--steps", "2"]
        shares = []
        if recipe is not asr:  # as the second half of a longer run
            command += ["--schedule", "0.5", "1"]
            monkeypatch.setattr(recipe, "learning_rate", note_share(recipe, shares))
        monkeypatch.setattr(sys, "argv", command)
        recipe.main()
        assert all(0.5 <= share < 1 for share in shares)
        assert len(shares) >= 2 or recipe is asr
        after = load_file(out / name)
        assert after.keys() == before.keys()
        moved = [k for k in after if not torch.equal(after[k], before[k])]
        assert len(moved) > len(after) / 2
        trained = [k for k in moved if "codebook" not in k]  # these follow their vectors at once
        far = max(float((after[k].float() - before[k].float()).abs().max()) for k in trained)
        assert far < 0.01, "two steps are not a start from nothing"
    assert run.too_large(out) == []


def test_silent_frames_have_the_codes_of_long_silence(tmp_path: Path) -> None:
    write_corpus(tmp_path, "train0000")
    corpus = Corpus(tmp_path, "train", torch.device("cpu"))
    pause = slice(10 * FRAME, 13 * FRAME)  # after audio: the encoder still remembers it
    corpus.samples[pause] = 0
    folder = run.EMBEDDED / run.TTS / "speech_tokenizer"
    drawn = encode_corpus(corpus, folder, corpus.device)
    codes = drawn.clone()
    still = settle_silence(codes, corpus, folder)
    frames = int(corpus.frames[0])
    assert torch.nonzero(still)[:, 0].tolist() == sorted(
        [10, 11, 12, *(start + k for start in range(0, 3 * frames, frames) for k in (0, 1))]
    )
    assert not torch.equal(drawn[10, 1:], drawn[12, 1:])
    assert (codes[still, 1:] == codes[12, 1:]).all()
    assert torch.equal(codes[:, 0], drawn[:, 0])
    assert torch.equal(codes[~still], drawn[~still])


def test_silent_frames_have_more_weight_in_the_talkers_loss(tmp_path: Path, monkeypatch) -> None:
    write_corpus(tmp_path / "data", "train0000")
    run.begin(tmp_path)
    (tmp_path / run.TTS / "model.safetensors").unlink()  # a trained talker is sure of silence
    corpus = Corpus(tmp_path / "data", "train", torch.device("cpu"))
    options = argparse.Namespace(out=tmp_path / run.TTS, seed=0, own=re.compile(""), anchor=0.0)

    def summed(weight: float) -> torch.Tensor:
        """Of first codes and of the others, before the division by what all frames weigh."""
        monkeypatch.setattr(talker, "_STILL_WEIGHT", weight)
        trainer = talker.TalkerTrainer(options, corpus, corpus.device)
        torch.manual_seed(0)
        trainer.loss(torch.tensor([0]), 88)
        frames, still = int(corpus.frames[0]), 2
        total = frames + (weight - 1) * still
        return trainer.metrics[:2] * torch.tensor([total + weight, total])  # with the end, without

    plain, more, most = summed(1.0), summed(4.0), summed(7.0)
    assert (more - plain > 0).all()
    torch.testing.assert_close(most - plain, 2 * (more - plain), rtol=1e-3, atol=1e-3)


def test_a_classifier_judges_phonemes_that_it_learned_from_the_original() -> None:
    """Two phonemes are tones of their own; the codec's audio has them, or the wrong one."""
    numbers = json.loads(PHONES.read_text())
    labels = torch.tensor([[numbers["g"], numbers["d"]] * 4] * 2).repeat_interleave(4, dim=1)
    at = torch.arange(labels.shape[1] * LABEL) / 24_000
    tones_hz = torch.where(labels == numbers["g"], 900.0, 2500.0).repeat_interleave(LABEL, dim=1)
    true = 0.1 * torch.sin(2 * torch.pi * tones_hz * at)
    swapped = true.roll(4 * LABEL, dims=1)
    classifier = PhoneClassifier(torch.device("cpu"), seed=0)
    for _ in range(25):
        classifier.judge(true, true, labels)
        classifier.apply()
    made = swapped.clone().requires_grad_()
    wrong = classifier.judge(made, true, labels)
    assert wrong.item() > 1.0
    assert classifier.right[0] > 0.9 > 0.5 > classifier.right[1]
    (gradient,) = torch.autograd.grad(wrong, [made])
    assert gradient.abs().sum() > 0
    unlabelled = torch.full_like(labels, UNLABELLED)
    assert classifier.judge(swapped, true, unlabelled).item() == 0.0
    assert classifier.judge(true, true, labels).item() < 0.02


def test_divergence_is_that_of_kullback_and_leibler_over_counted_rows() -> None:
    wanted = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]).log()
    logits = torch.tensor([[0.25, 0.5, 0.25], [0.8, 0.1, 0.1]]).log() + 3.0
    first = 0.5 * np.log(2) + 0.25 * np.log(0.5)
    found = divergence(logits, wanted, torch.tensor([2.0, 0.0]))
    assert float(found) == pytest.approx(first)
    assert float(divergence(wanted, wanted, torch.ones(2))) == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("newest", [True, False])
def test_an_anchor_holds_all_voices_but_the_newest(tmp_path: Path, monkeypatch, newest) -> None:
    write_corpus(tmp_path / "data", "train0000")
    run.begin(tmp_path)
    corpus = Corpus(tmp_path / "data", "train", torch.device("cpu"))
    monkeypatch.setattr(talker, "NEWEST", (all_voices()[corpus.voices[0]].name,) if newest else ())
    options = argparse.Namespace(out=tmp_path / run.TTS, seed=0, own=re.compile(""), anchor=2.0)
    trainer = talker.TalkerTrainer(options, corpus, corpus.device)

    def drift() -> float:
        trainer.loss(torch.tensor([0]), 88)
        return float(trainer.metrics[4])

    assert drift() == pytest.approx(0.0, abs=1e-4)
    with torch.no_grad():
        trainer.weights.flat *= 1.05
    assert (drift() > 0.01) != newest


def test_an_anchored_transcriber_may_change_its_answers_to_no_speech_only(tmp_path: Path) -> None:
    write_corpus(tmp_path / "data", "train0000")
    shutil.copytree(run.EMBEDDED / run.ASR, tmp_path / run.ASR)
    corpus = Corpus(tmp_path / "data", "train", torch.device("cpu"))
    options = {"out": tmp_path / run.ASR, "data": tmp_path / "data", "layers": None, "jobs": None}
    options |= {
        "seed": 0,
        "own": re.compile(""),
        "anchor": 2.0,
        "cut_share": 0.0,
        "moved_share": 0.3,
    }
    options |= {"gentle": False, "larger": False, "orthogonal": True, "unspoken": None}
    trainer = asr.AsrTrainer(argparse.Namespace(**options), corpus, corpus.device)
    items = torch.tensor([0, 1, 2])  # the first row is replaced by audio without speech
    trainer.loss(items, 37, 14)
    assert float(trainer.metrics[2]) == pytest.approx(0.0, abs=1e-5)
    with torch.no_grad():
        trainer.weights.flat *= 1.05
    trainer.loss(items, 37, 14)
    assert float(trainer.metrics[2]) > 0.01
    trainer.loss(items[:1], 37, 14)
    assert float(trainer.metrics[2]) == 0.0


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ((), ["text", "speech", "talker"]),
        (("text/train.txt",), ["speech", "talker"]),
        (("text/train.txt", "data/heldout.json"), ["talker"]),
    ],
)
def test_a_run_on_another_machine_repeats_stages_with_missing_files(
    tmp_path: Path, monkeypatch, there: tuple[str, ...], expected: list[str]
) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    for name in there:
        (work / name).parent.mkdir(parents=True)
        (work / name).touch()
    progress = run.StageProgress(out)
    out.mkdir()
    for name in ("text", "speech"):
        progress.note(run.Stage(name, ()), 1.0, finished=True)
    ran: list[str] = []
    monkeypatch.setattr(
        run, "run", lambda rows, _: ran.extend(stage.name for row in rows for stage in row)
    )
    stages = ["--stages", "text", "speech", "talker"]
    monkeypatch.setattr(sys, "argv", ["run", str(work), str(out), *stages])
    run.main()
    assert ran == expected
