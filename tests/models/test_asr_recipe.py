"""Training of the transcriber: audio without speech, and weights that stay fixed."""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soxr
import torch
from safetensors.torch import load_file

from izwi.inputs.speech import TextMode
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.tiny.recipes import asr, augment
from izwi_models.tiny.recipes import selection as selection_module
from izwi_models.tiny.recipes.asr import AsrTrainer
from izwi_models.tiny.recipes.cut_off import Beginnings, Cuts, heard_words
from izwi_models.tiny.recipes.data import Corpus, read_words
from izwi_models.tiny.recipes.decoding import Sampling, Speaker
from izwi_models.tiny.recipes.evaluate import pairs_of_a_voice
from izwi_models.tiny.recipes.selection import BEST, Selection, write_clips
from izwi_models.tiny.recipes.speech import SAMPLE_RATE, SpokenWord
from tests.models.test_voice_run import TEXTS, write_corpus

EMBEDDED = Path(augment.__file__).parents[1] / "izwi-tiny-asr"


def test_only_the_named_tensors_are_trained(tmp_path: Path) -> None:
    write_corpus(tmp_path / "data", "train-0")
    out = tmp_path / "asr"
    shutil.copytree(EMBEDDED, out)
    options = argparse.Namespace(
        out=out,
        data=tmp_path / "data",
        jobs=None,
        cut_share=0.0,
        moved_share=0.3,
        layers=None,
        seed=0,
        anchor=0.0,
        gentle=False,
        larger=False,
        orthogonal=False,
        unspoken=None,
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


def test_beeps_have_silent_and_loud_parts() -> None:
    torch.manual_seed(1)
    audio = augment._beeps(64, 4 * augment.RATE, torch.device("cpu"))
    assert audio.isfinite().all()
    windows = augment.level(audio.view(-1, 400)).view(64, -1)
    quiet = (windows < 0.05).float().mean(1)
    changes = ((windows[:, 1:] < 0.05) != (windows[:, :-1] < 0.05)).sum(1)
    assert (quiet < 0.95).all()
    assert ((quiet > 0.1) & (changes >= 2)).float().mean() > 0.5


def test_coughs_have_silent_and_loud_parts() -> None:
    torch.manual_seed(2)
    audio = augment._coughs(64, 4 * augment.RATE, torch.device("cpu"))
    assert audio.isfinite().all()
    windows = augment.level(audio.view(-1, 320)).view(64, -1)
    loud = windows > 0.1
    begins = (loud[:, 1:] & ~loud[:, :-1]).sum(1)
    assert (loud.float().mean(1) < 0.7).float().mean() > 0.8
    assert (begins >= 1).float().mean() > 0.8
    assert (begins >= 3).any()


def test_a_word_counts_as_heard_after_most_of_its_duration() -> None:
    spoken = [
        SpokenWord(0, 100.0, 500.0),
        SpokenWord(6, 600.0, 800.0),
        SpokenWord(10, 800.0, 1200.0),
    ]
    rows = heard_words("Well, the dog.", [4, 1, 4, 4, 1], spoken)
    # the comma comes only with the next word, the full stop with the last
    assert rows == [(19, 1), (37, 3), (54, 5)]


def test_words_that_share_an_id_count_together() -> None:
    spoken = [SpokenWord(0, 100.0, 300.0), SpokenWord(3, 300.0, 500.0)]
    assert heard_words("I'd go", [2, 4], spoken) == [(22, 2)]


def test_an_utterance_that_is_cut_off_keeps_the_words_before_the_cut(tmp_path: Path) -> None:
    write_corpus(tmp_path, "train-0")
    device = torch.device("cpu")
    corpus = Corpus(tmp_path, "train", device)
    tokenizer = QwenTokenizer(EMBEDDED)
    beginnings = Beginnings(corpus, read_words(tmp_path, "train", None), tokenizer)
    torch.manual_seed(3)
    items = torch.arange(3).repeat(200)
    cuts = beginnings.draw(items, 0.5)
    assert 0.4 < cuts.is_cut.float().mean() < 0.6
    whole = corpus.device_frames[items] * 4
    assert torch.equal(cuts.labels[~cuts.is_cut], whole[~cuts.is_cut])
    heard = {
        (item, tokenizer.decode(tokenizer.encode(corpus.texts[item])[:count])): label
        for item, label, count in zip(
            *(x[cuts.is_cut].tolist() for x in (items, cuts.labels, cuts.tokens)), strict=True
        )
    }
    texts = {text for _, text in heard}
    assert texts == {"The house is near the", *TEXTS, "Call"}
    assert (cuts.labels[cuts.is_cut] <= whole[cuts.is_cut]).all()
    assert heard[2, "Call"] < 40  # 780 ms, from which on "me" is heard
    first = {0: 35, 1: 31, 2: 21}
    assert all(label >= first[item] for (item, _), label in heard.items())


def test_the_parts_of_a_corpus_come_one_after_the_other(tmp_path: Path) -> None:
    for stem in ("replies0000", "train0001", "train0000", "heldout"):
        write_corpus(tmp_path, stem)
        meta = tmp_path / f"{stem}.json"
        rows = [
            (voice, f"{stem} {text}", count) for voice, text, count in json.loads(meta.read_text())
        ]
        meta.write_text(json.dumps(rows))
    device = torch.device("cpu")

    def stems(part: str, limit: int | None = None) -> list[str]:
        return [text.split()[0] for text in Corpus(tmp_path, part, device, limit).texts[::3]]

    assert stems("train") == ["train0000", "train0001"]
    assert stems("train replies") == ["train0000", "train0001", "replies0000"]
    assert stems("train replies", 1) == ["train0000", "replies0000"]
    assert len(read_words(tmp_path, "train replies", None)) == 9
    assert len(read_words(tmp_path, "train replies", 1)) == 6


def test_the_transcriber_learns_from_replies_too(tmp_path: Path, monkeypatch) -> None:
    for stem in ("train0000", "replies0000"):
        write_corpus(tmp_path, stem)
    trained: list[AsrTrainer] = []
    monkeypatch.setattr(asr, "train", lambda trainer, _: trained.append(trainer))
    words = ["asr", str(tmp_path), str(EMBEDDED), "--own", "phone_head"]
    monkeypatch.setattr("sys.argv", words)
    asr.main()
    assert trained[0].corpus.texts == 2 * list(TEXTS)
    assert len(trained[0].answers) == 6


def test_pairs_for_figures_are_of_one_voice_and_use_no_item_twice() -> None:
    voices = np.array([3, 1, 2, 1, 3, 3, 1, 1, 2, 3])
    items = np.arange(1, 10)
    pairs = pairs_of_a_voice(SimpleNamespace(voices=voices), items)
    assert (voices[pairs[:, 0]] == voices[pairs[:, 1]]).all()
    assert len(set(pairs.flatten())) == 2 * len(pairs)
    assert set(pairs.flatten()) <= set(items)
    assert {1, 2} <= set(voices[pairs[:, 0]])


def _trainer(data: Path, out: Path = EMBEDDED, **changes: object) -> AsrTrainer:
    options = {
        "out": out,
        "data": data,
        "jobs": None,
        "cut_share": 0.0,
        "moved_share": 0.3,
        "layers": None,
        "larger": False,
        "gentle": False,
        "orthogonal": True,
        "unspoken": None,
        "seed": 0,
        "anchor": 0.0,
        "own": re.compile(""),
    }
    device = torch.device("cpu")
    chosen = argparse.Namespace(**{**options, **changes})
    return AsrTrainer(chosen, Corpus(data, "train", device), device)


def test_the_answer_to_a_cut_utterance_ends_with_its_last_word(tmp_path: Path) -> None:
    write_corpus(tmp_path, "train-0")
    trainer = _trainer(tmp_path, own=re.compile("phone_head"))
    items = torch.zeros(16, dtype=torch.long)
    cuts = Cuts(
        torch.tensor([False, True] * 8), torch.tensor([136, 50] * 8), torch.tensor([0, 5] * 8)
    )
    answers, lengths = trainer._wanted(items, cuts, trainer.answers.shape[1])
    audio, labels, frames = trainer._heard(items, cuts, 40)
    end = trainer.template.end
    whole, cut = answers[2, : lengths[2]].tolist(), answers[3, : lengths[3]].tolist()
    assert whole[-1] == cut[-1] == end
    assert whole[: len(cut) - 1] == cut[:-1]
    assert len(cut) == len(trainer.template.opening) + 5 + 1 < len(whole)
    assert (frames[1::2] >= 13).all()
    assert (frames[1::2] <= 13 + 5).all()
    assert (frames[2::2] >= 34).all()
    spoken = (labels != trainer._silence).flatten(1).sum(1)
    assert ((spoken[3::2] >= 42) & (spoken[3::2] <= 50)).all()
    assert audio.shape[0] == 16


@pytest.mark.slow
@pytest.mark.parametrize(("share", "kept"), [(0.0, {136}), (1.0, set(range(128, 137)))])
def test_silence_before_the_first_word_is_cut_away_at_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, kept: set[int]
) -> None:
    monkeypatch.setattr(asr, "_ABRUPT_ROWS", share)
    monkeypatch.setattr(asr, "_PAUSED_ROWS", 0.0)
    write_corpus(tmp_path, "train-0")
    trainer = _trainer(tmp_path, own=re.compile("phone_head"), moved_share=0.0)
    torch.manual_seed(1)
    items = torch.zeros(200, dtype=torch.long)
    cuts = trainer._beginnings.draw(items, 0.0)
    _, labels, _ = trainer._heard(items, cuts, 40)
    spoken = (labels != trainer._silence).flatten(1).sum(1)[25:]  # no speech in the first eighth
    assert set(spoken.tolist()) == kept


@pytest.mark.slow
def test_a_larger_transcriber_is_gone_on_with_in_its_own_sizes(tmp_path: Path) -> None:
    write_corpus(tmp_path / "data", "train-0")
    out = tmp_path / "asr"
    out.mkdir()
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        shutil.copy(EMBEDDED / name, out)
    trainer = _trainer(tmp_path / "data", out, larger=True)
    assert trainer.config.audio.encoder_layers == 9
    trainer.save(out)
    again = _trainer(tmp_path / "data", out)
    assert again.config == trainer.config
    assert again.resumed == len(load_file(out / "model.safetensors"))
    head = load_file(out / asr.PHONE_HEAD)["phone_head.weight"]
    assert torch.equal(again.weights.views()["phone_head.weight"], head.float())


@pytest.mark.slow
def test_the_decoder_learns_english_from_texts_that_nobody_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asr, "_UNSPOKEN_ROWS", 4)
    write_corpus(tmp_path / "data", "train-0")
    (tmp_path / "texts").write_text("The lamp is on the table.\n" + 40 * "word " + "\n")
    trainer = _trainer(tmp_path / "data", unspoken=tmp_path / "texts")
    table, lengths = trainer._unspoken
    opening = trainer.template.opening
    assert len(table) == 1
    assert table[0, : len(opening)].tolist() == opening
    assert table[0, lengths[0] - 1] == trainer.template.end
    trainer.optimizer.rate.fill_(4e-3)
    losses = []
    for _ in range(3):
        torch.manual_seed(0)
        trainer.hold(torch.tensor([0]), 40, 12)  # its only row is replaced by audio without speech
        trainer.optimizer.apply()
        losses.append(float(trainer.metrics[4]))
    assert losses[-1] < 0.7 * losses[0]


def test_the_decoder_does_not_trust_what_it_wrote(tmp_path: Path) -> None:
    write_corpus(tmp_path / "data", "train-0")
    trainer = _trainer(tmp_path / "data")
    answers = torch.full((400, 20), 5)
    read = trainer._misread(answers) != answers
    opening = len(trainer.template.opening)
    assert not read[:, :opening].any()
    assert 0.04 < read[:, opening:].float().mean() < 0.08
    trainer = _trainer(tmp_path / "data", gentle=True)
    assert torch.equal(trainer._misread(answers), answers)


@pytest.mark.slow
def test_weights_are_chosen_by_clips_and_averaged_along_the_way(tmp_path: Path) -> None:
    folder = tmp_path / "asr"
    shutil.copytree(EMBEDDED, folder)
    good = load_file(folder / "model.safetensors")
    cpu = torch.device("cpu")
    texts = ["The train leaves at seven in the morning.", "The red house is near the river."]
    speaker = Speaker(EMBEDDED.with_name("izwi-tiny-tts"), cpu)
    codes = speaker.speak(texts, ["basil", "hugo"], TextMode.FULL, Sampling(temperature=0.0))
    said = [soxr.resample(audio.numpy(), SAMPLE_RATE, 16_000) for audio in speaker.audio(codes)]
    clips = list(zip(said, texts, strict=True))
    write_clips(clips, tmp_path / "clips.npz")
    selection = Selection(tmp_path / "clips.npz", folder, cpu)
    assert selection.consider(good) == {"last": 0.0, "mean": 0.0}
    chosen = load_file(folder / BEST)
    bad = {name: torch.zeros_like(tensor) for name, tensor in good.items()}
    rates = selection.consider(bad)
    assert rates["last"] >= 100.0
    assert rates["mean"] > 0.0  # of both
    assert selection.least == 0.0
    assert all(torch.equal(chosen[name], load_file(folder / BEST)[name]) for name in good)


def test_the_mean_leaves_out_the_first_third(tmp_path: Path, monkeypatch) -> None:
    judged: list[float] = []

    class Judge:
        def __init__(self, folder: Path, device: torch.device, weights: dict[str, torch.Tensor]):
            judged.append(float(weights["x"]))

        def transcribe(self, clips: list[torch.Tensor]) -> list[str]:
            return ["word"]

    monkeypatch.setattr(selection_module, "Listener", Judge)
    write_clips([(np.zeros(2000, np.float32), "word")], tmp_path / "clips.npz")
    selection = Selection(tmp_path / "clips.npz", tmp_path, torch.device("cpu"))
    for value in range(6):
        selection.consider({"x": torch.tensor(float(value))})
    assert judged[-2:] == [5.0, 3.5]  # of 2, 3, 4 and 5
