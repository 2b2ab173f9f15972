"""The speakers, texts and levels of the embedded voice's corpus."""

from __future__ import annotations

import argparse
import importlib
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from izwi_models.tiny.recipes.data import Corpus
from izwi_models.tiny.recipes.loudness import levelling_gain, loudness
from izwi_models.tiny.recipes.people import cast_speech, made, voice_run
from izwi_models.tiny.recipes.people.cast import (
    DRAWN,
    FIRST_DRAWN,
    HELDOUT,
    PARTS,
    TABLES,
    draw_cast,
)
from izwi_models.tiny.recipes.people.cast_flite import SIZES, levelled
from izwi_models.tiny.recipes.people.kokoro import TIMBRE
from izwi_models.tiny.recipes.people.kokoro_speech import Batch, Line
from izwi_models.tiny.recipes.people.names import Names, wordnet_names
from izwi_models.tiny.recipes.people.run import EMBEDDED
from izwi_models.tiny.recipes.rows import assign_voices
from izwi_models.tiny.recipes.speech import FRAME, LABEL, SAMPLE_RATE
from izwi_models.tiny.recipes.voices import NAMED, all_voices

PEOPLE = (
    "  1 This line is the licence\n"
    "09001 18 n 03 Marie_Curie 0 Curie 0 Madame_Curie 0 001 @i 10428004 n 0000 | a chemist\n"
    "09002 18 n 01 chemist 0 001 @ 10428004 n 0000 | a scientist\n"
    "09003 15 n 02 Oslo 0 capital_of_Norway 0 001 @i 08524735 n 0000 | a city\n"
)


def tone(hertz: float, size: float, seconds: float) -> torch.Tensor:
    at = torch.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return size * torch.sin(2 * torch.pi * hertz * at)


def test_a_tone_of_1_khz_at_full_scale_has_minus_3_lufs() -> None:
    """So the recommendation says of one channel."""
    assert float(loudness(tone(997, 1.0, 2.0)[None])[0]) == pytest.approx(-3.01, abs=0.05)
    assert float(loudness(tone(997, 0.1, 2.0)[None])[0]) == pytest.approx(-23.01, abs=0.05)
    assert float(loudness(tone(40, 0.1, 2.0)[None])[0]) < -27  # low tones count less
    assert float(loudness(tone(6000, 0.1, 2.0)[None])[0]) > -20.5  # high ones more


def test_silence_and_quiet_parts_do_not_count() -> None:
    loud = tone(997, 0.2, 2.0)
    quiet = torch.cat([loud, tone(997, 0.002, 4.0), torch.zeros(SAMPLE_RATE)])
    ours, theirs = (float(loudness(x[None])[0]) for x in (loud, quiet))
    assert ours == pytest.approx(theirs, abs=0.4)
    assert float(loudness(torch.zeros(1, 5))[0]) == -70.0


def test_clips_get_the_same_loudness_unless_they_would_clip() -> None:
    clips = torch.stack([tone(300, 0.02, 1.0), tone(1200, 0.5, 1.0)])
    levelled_clips = clips * levelling_gain(clips, -20.0)[:, None]
    assert loudness(levelled_clips).tolist() == pytest.approx([-20, -20], abs=0.01)
    click = torch.zeros(1, SAMPLE_RATE)
    click[0, 12_000] = 0.1
    assert float((click * levelling_gain(click, -20.0)).abs().max()) == pytest.approx(0.95)


def test_flites_speech_has_the_corpus_level() -> None:
    clip = (tone(300, 0.1, 1.0) * 32767).to(torch.int16).numpy()
    audio = torch.from_numpy(levelled(clip).astype(np.float32) / 32768)
    assert float(loudness(audio[None])[0]) == pytest.approx(cast_speech.LUFS, abs=0.05)
    assert 1.0 in SIZES


def tables() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(510, 2 * TIMBRE, generator=generator) for name in TABLES}


def test_a_speaker_stays_the_same_in_all_utterances() -> None:
    cast, styles = draw_cast(), tables()
    numbers, counts = torch.tensor([FIRST_DRAWN, 2, FIRST_DRAWN]), torch.tensor([9, 9, 9])
    first = cast.speakers(styles, numbers, counts)
    torch.testing.assert_close(first.styles[0], first.styles[2])
    assert not torch.allclose(first.styles[0], first.styles[1])
    again = draw_cast().speakers(styles, numbers, counts)
    torch.testing.assert_close(again.styles, first.styles)
    assert [float(getattr(first, name)[1]) for name in ("pitch", "warp", "pace")] == pytest.approx(
        [PARTS[2].pitch, PARTS[2].warp, PARTS[2].pace]
    )


def test_a_named_speaker_is_a_mixture_of_tables() -> None:
    cast, styles, counts = draw_cast(), tables(), torch.tensor([7])
    for number, part in enumerate(PARTS):
        made_styles = cast.speakers(styles, torch.tensor([number]), counts).styles[0]
        for shares, place in (
            (part.timbre, slice(0, TIMBRE)),
            (part.prosody, slice(TIMBRE, None)),
        ):
            mixed = sum(
                share / sum(shares) * styles[name][7, place]
                for share, name in zip(shares, TABLES, strict=True)
            )
            torch.testing.assert_close(made_styles[place], mixed)
    women = [part.timbre[TABLES.index("jm_kumo")] < 0.5 for part in PARTS]
    assert sum(women) == 4


def test_nobody_who_is_held_out_speaks_in_training() -> None:
    texts = [str(number) for number in range(4000)]
    rows = cast_speech.assigned(texts, 1)
    voices = np.array([voice for _, voice in rows])
    assert [text for text, _ in rows] == texts
    named = voices < len(NAMED)
    assert named.mean() == pytest.approx(0.6, abs=0.03)
    assert set(voices[named]) == set(range(len(NAMED)))
    assert voices[~named].min() >= FIRST_DRAWN
    unseen = {voice for _, voice in cast_speech.heldout(texts[:100])[100:]}
    assert unseen == set(range(FIRST_DRAWN + DRAWN - HELDOUT, FIRST_DRAWN + DRAWN))
    assert not unseen & set(voices)


def test_held_out_speech_keeps_the_order_of_its_texts(tmp_path: Path) -> None:
    lines = [Line(text, (0, 1, 0), "_a_", voice) for voice, text in enumerate("ABC")]

    class Shuffler:
        """Speaks the last ones first, two at a time."""

        def make(self, asked: list[Line]):
            for part in (asked[1:][::-1], asked[:1]):
                samples = np.full((len(part), FRAME), part[0].voice, np.int16)
                labels = np.zeros((len(part), FRAME // LABEL), np.uint8)
                yield Batch(part, samples, labels, [FRAME] * len(part), [[]] * len(part))

    cast_speech.make_heldout(Shuffler(), lines, tmp_path / "heldout")  # type: ignore[arg-type]
    corpus = Corpus(tmp_path, "heldout", torch.device("cpu"))
    assert corpus.texts == ["A", "B", "C"]
    assert corpus.voices.tolist() == [0, 1, 2]
    kept = made.Kept()
    made.keep_originals(kept, corpus, 2)
    kept.write(tmp_path / "clips")
    with np.load(tmp_path / "clips.npz") as file:
        assert sorted(file) == ["original-0-0", "original-1-1"]
        assert file["original-1-1"].shape == (FRAME,)


def test_names_come_from_instances_of_wordnet(tmp_path: Path) -> None:
    path = tmp_path / "data.noun"
    path.write_text(PEOPLE, "latin-1")
    assert wordnet_names(path, "18") == ["Marie Curie", "Curie", "Madame Curie"]
    assert wordnet_names(path, "15") == ["Oslo"]
    drawn = Names(path, 3).sentences()
    texts = [next(drawn) for _ in range(600)]
    again = Names(path, 3).sentences()
    assert texts == [next(again) for _ in range(600)]
    assert max(map(len, texts)) <= 100
    assert not [text for text in texts if set("{}_") & set(text)]
    joined = " ".join(texts)
    assert all(name in joined for name in ("Curie", "Oslo", "Merkel", "W W W dot", "www"))


def test_espeak_may_speak_with_some_voices_for_cloning_alone() -> None:
    texts = [("A.", "", 1.0)] * 500
    voices = {row.voice for row in assign_voices(texts, random.randrange(9), clones=20)}
    assert voices <= set(range(len(NAMED), len(NAMED) + 20))
    assert not any(all_voices()[voice].heldout for voice in voices)


OPTIONS = argparse.Namespace(
    work=Path("work"),
    out=Path("out"),
    package=Path("kokoro"),
    speech_seconds=200.0,
    codec_seconds=430.0,
    talker_seconds=470.0,
    decoder_seconds=200.0,
    stages=None,
    gpus=1,
)


class Parsed(Exception):
    """What a command line was understood as."""


def test_each_stage_of_the_run_is_a_command_that_its_recipe_understands(monkeypatch) -> None:
    parse = argparse.ArgumentParser.parse_args

    def stop(parser: argparse.ArgumentParser) -> None:
        raise Parsed(parse(parser))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    stages = voice_run.plan(OPTIONS, cores=9)
    assert list(stages) == [*voice_run.PREPARED, *voice_run.SPOKEN, *voice_run.TRAINED]
    found = {}
    for name, stage in stages.items():
        monkeypatch.setattr("sys.argv", list(stage.command[1:]))
        with pytest.raises(Parsed) as caught:
            importlib.import_module(stage.command[1]).main()
        found[name] = caught.value.args[0]
    assert found["decoder"].decoder_only
    assert not found["codec"].decoder_only
    assert found["talker"].out == found["codec"].out == Path("out/izwi-tiny-tts")
    assert found["espeak"].clones < 2000
    assert found["espeak"].no_heldout, "Kokoro's held-out speech has the same file names"


def test_training_begins_with_a_copy_of_the_embedded_voice(tmp_path: Path) -> None:
    voice_run.begin(tmp_path)
    first = (tmp_path / voice_run.TTS / "model.safetensors").read_bytes()
    assert first == (EMBEDDED / voice_run.TTS / "model.safetensors").read_bytes()
    (tmp_path / voice_run.TTS / "model.safetensors").write_bytes(b"trained")
    voice_run.begin(tmp_path)
    assert (tmp_path / voice_run.TTS / "model.safetensors").read_bytes() == b"trained"
