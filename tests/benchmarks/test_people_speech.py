"""Speech of people for figures: which prompts are read, and what is missing without packages."""

from __future__ import annotations

import gzip
import random
import wave
from pathlib import Path

import numpy as np
import pytest

from benchmarks.quality import people_speech
from benchmarks.quality.people import disturbed, held_out_questions
from benchmarks.quality.people_speech import RATE, Clip
from benchmarks.quality.transcribers import read_speech, write_speech
from izwi_models.tiny.recipes.people.phrases import question


def _write(path: Path, seconds: float) -> None:
    tone = 8000 * np.sin(np.arange(round(8000 * seconds)) * 0.2)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(tone.astype("<i2").tobytes())


def test_prompts_for_judging_are_whole_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"prompt-{number}" for number in range(40)]
    judged = [name for name in names if people_speech.is_for_judging(name)]
    assert 10 < len(judged) < 30
    lines = [f"{name}: Please say the word {name[0]} again." for name in names]
    short, long, digits = judged[:3]
    lines[names.index(digits)] = f"{digits}: Please press 1 now or wait."
    for name in names:
        _write(tmp_path / f"{name}.wav", 0.5 if name == short else 9.0 if name == long else 2.0)
    with gzip.open(tmp_path / "texts.gz", "wt") as file:
        file.write("; a remark\n" + "\n".join(lines) + "\nmissing: This one has no recording.\n")
    monkeypatch.setattr(people_speech, "PROMPTS", tmp_path)
    monkeypatch.setattr(people_speech, "PROMPT_TEXTS", tmp_path / "texts.gz")
    clips = people_speech.prompts()
    assert len(clips) == len(judged) - 3
    assert all(clip.text == "Please say the word p again." for clip in clips)
    assert all(len(clip.samples) == 32_000 and clip.samples.dtype == np.float32 for clip in clips)
    monkeypatch.setattr(people_speech, "PROMPT_TEXTS", tmp_path / "nothing.gz")
    assert people_speech.prompts() == []


def test_voices_whose_packages_are_missing_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(people_speech.shutil, "which", lambda _: None)
    monkeypatch.setattr(people_speech, "find_spec", lambda _: None)
    assert people_speech.flite(["Hello."], "slt") == []
    assert people_speech.festival(["Hello."], "kal_diphone") == []
    assert people_speech.piper(["Hello."]) == []
    assert people_speech.kokoro(["Hello."], people_speech.KOKORO_WOMAN) == []


def test_questions_for_judging_are_none_that_are_trained() -> None:
    asked = held_out_questions(60)
    dice = random.Random(3)
    assert len(set(asked)) == 60
    assert not {question(dice) for _ in range(600)} & set(asked)


def _clips(*lengths_s: float) -> list[Clip]:
    draw = np.random.default_rng(1)
    return [
        Clip(0.1 * draw.normal(size=round(RATE * length)).astype(np.float32), f"Clip {length}.")
        for length in lengths_s
    ]


def test_disturbed_clips_say_the_same_and_pairs_say_both() -> None:
    first, second = _clips(1.0, 1.5), _clips(0.5, 0.7)
    made = disturbed(first, second)
    *single, pairs = made.values()
    for clips in single:
        assert [clip.text for clip in clips] == ["Clip 1.0.", "Clip 1.5."]
        assert [len(clip.samples) for clip in clips] == [len(clip.samples) for clip in first]
        assert not np.array_equal(clips[0].samples, first[0].samples)
    assert [clip.text for clip in pairs] == ["Clip 1.0. Clip 0.7.", "Clip 1.5. Clip 0.5."]
    assert RATE * 1.8 <= len(pairs[0].samples) <= RATE * 3.2
    assert not any(disturbed([], []).values())


def test_speech_is_read_as_it_was_written(tmp_path: Path) -> None:
    speech = {"a person, 8 kHz": _clips(0.2, 0.1), "flite slt": _clips(0.3)}
    write_speech(speech, tmp_path / "clips")
    found = read_speech(tmp_path / "clips")
    assert found.keys() == speech.keys()
    for what, clips in speech.items():
        for clip, other in zip(clips, found[what], strict=True):
            assert clip.text == other.text
            np.testing.assert_allclose(clip.samples, other.samples, atol=2e-5)
