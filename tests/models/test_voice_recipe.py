"""What codec and transcriber are trained on beside clean sentences, and the losses of the codec."""

from __future__ import annotations

import json
import random
import re
from collections import Counter

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from izwi.backends.torch.ops import TorchOps
from izwi.checkpoints.registry import embedded
from izwi_models.qwen3_asr.config import read_config
from izwi_models.tiny.recipes import speech
from izwi_models.tiny.recipes.augment import (
    babble,
    coloured_noise,
    disturbed,
    level,
    no_speech,
    through_rooms,
)
from izwi_models.tiny.recipes.codec_folder import load_codec, write_codec
from izwi_models.tiny.recipes.data import Corpus, read_words
from izwi_models.tiny.recipes.fused import FusedNorms
from izwi_models.tiny.recipes.perception import Perception
from izwi_models.tiny.recipes.rows import Row, assign_voices, replies
from izwi_models.tiny.recipes.settings import ASR, asr_config
from izwi_models.tiny.recipes.short import (
    HELDOUT_SHORT,
    backchannels,
    draw_heldout,
    punctuated,
    short_utterances,
)
from izwi_models.tiny.recipes.spectral import gap_loss
from izwi_models.tiny.recipes.speech import Espeak, followed_by, jobs_for, run_job
from izwi_models.tiny.recipes.voices import NAMED, Voice, all_voices
from izwi_models.tiny.recipes.voicing import periodicity_loss

CPU = torch.device("cpu")
SAMPLES = 16_000
_PREPROCESSOR = "preprocessor_config.json"


def voices(rows: int = 8, rate: int = 16_000, seconds: float = 1.0) -> torch.Tensor:
    """Buzzes of different pitches, silent at first."""
    time = torch.arange(int(rate * seconds)) / rate
    pitch = 100.0 + 10.0 * torch.arange(rows)[:, None]
    audio = sum(torch.sin(2 * torch.pi * n * pitch * time) / n for n in range(1, 9))
    assert isinstance(audio, torch.Tensor)
    return 0.1 * audio * (time > 0.1)


# -- noise, rooms, no speech ----------------------------------------------------------------------
@pytest.mark.parametrize("make", [disturbed, lambda audio: no_speech(*audio.shape, CPU)])
def test_augmented_audio_is_finite_and_not_silent(make) -> None:
    torch.manual_seed(0)
    heard = make(voices())
    assert heard.shape == (8, SAMPLES)
    assert heard.isfinite().all()
    assert (level(heard) > 1e-4).any()
    assert heard.abs().max() < 20


def test_augmentation_never_waits_for_the_device() -> None:
    # a CUDA graph cannot capture a value that the host waits for, and a fake tensor has none
    with FakeTensorMode():
        assert disturbed(torch.zeros(4, SAMPLES)).shape == (4, SAMPLES)
        assert no_speech(4, SAMPLES, CPU).shape == (4, SAMPLES)


def test_noise_has_level_one_and_varying_colour() -> None:
    torch.manual_seed(0)
    noise = coloured_noise(64, SAMPLES, CPU)
    assert torch.allclose(level(noise), torch.ones(64, 1), atol=1e-3)
    power = torch.fft.rfft(noise).abs().square()
    low = power[:, :1000].sum(1) / power.sum(1)  # white: an eighth of the power
    assert low.min() < 0.2
    assert low.max() > 0.9


def test_babble_does_not_contain_the_rows_own_voice() -> None:
    audio = torch.zeros(8, SAMPLES)
    audio[3] = voices()[3]
    mixed = babble(audio)
    assert mixed[3].abs().max() == 0
    assert (level(mixed)[4:] > 0.5).all()


def test_reverberation_does_not_delay_speech() -> None:
    torch.manual_seed(0)
    audio = torch.zeros(64, SAMPLES)
    audio[:, 4000] = 1.0
    power = through_rooms(audio).square()
    # a telephone's filter has no delay either, and rings a little to both sides
    assert (power[:, :3600].sum(1) < 0.02 * power.sum(1)).all()
    assert (power[:, 4000] == power.amax(1)).all()
    assert (power[:, 4400:].sum(1) > 0.01 * power.sum(1)).any(), "no room at all"


# -- short utterances -----------------------------------------------------------------------------
def test_held_out_utterances_of_several_words_are_never_trained() -> None:
    heldout = HELDOUT_SHORT.read_text().splitlines()
    secret = {text.lower().rstrip(".?!") for text in heldout if " " in text}
    made = short_utterances(["table", "yes", "a"], ["Put it on the table, now."], 3000, 0)
    assert len(secret) > 100
    assert len(made) > 1000
    assert not secret & {text.lower().rstrip(".?!") for text in made}


def test_each_frequent_word_is_also_an_utterance() -> None:
    made = short_utterances(["gravel", "harness"], ["Put it on the table, now."], 200, 0)
    alone = {text.rstrip(".?!") for text in made if " " not in text}
    assert {"Gravel", "Harness"} <= alone
    assert all(text[0].isupper() and text[-1] in ".?!" for text in made)


def test_the_held_out_utterances_equal_the_recipes_output() -> None:
    assert draw_heldout() == HELDOUT_SHORT.read_text().splitlines()


def test_backchannels_are_spoken_from_phonemes_and_written_as_words() -> None:
    drawn = backchannels(400, 3)
    assert drawn == backchannels(400, 3)
    assert all(re.fullmatch(r"\[\[[^\[\]]+\]\]", spoken) for _, spoken, _ in drawn)
    count = Counter(text for text, _, _ in drawn)
    assert count["Mm-hm."] > 60 < count["Uh-huh."]
    assert len({spoken for text, spoken, _ in drawn if text == "Mm-hm."}) > 2
    paces = [pace for _, _, pace in drawn]
    assert 0.65 <= min(paces) < 0.7 < 1 < max(paces) <= 1.05


class Synthesiser(Espeak):
    """Speaks half a second of a tone, whatever the text, and keeps the texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._rate = 22_050
        self._words = [(3, 40)]

    def speak(
        self, text: str, voice: Voice
    ) -> tuple[np.ndarray[tuple[int], np.dtype[np.int16]], list[tuple[int, str]]]:
        self.texts.append(text)
        tone = np.sin(np.arange(11_025) * 0.1) * 20_000
        return tone.astype(np.int16), [(0, "_"), (40, "m"), (500, "_")]


def test_phonemes_spoken_for_a_text_count_as_one_word() -> None:
    espeak = Synthesiser()
    made = espeak.utterance("Mm-hm.", NAMED[0], {"_": 0, "m": 1}, "[[m'mh'Vm]]")
    assert espeak.texts == ["[[m'mh'Vm]]"]
    assert made is not None
    (word,) = made.words
    assert word.place == 0
    assert word.start_ms == 160.0  # silence is added before speech
    assert 600 < word.end_ms < 700


def test_each_text_is_spoken_by_a_trained_voice_and_the_newest_speaks_most() -> None:
    rows = assign_voices([(str(n), "[[V]]" * (n % 2), 0.9) for n in range(4000)], 5)
    assert [row.text for row in rows] == [str(number) for number in range(4000)]
    assert [row.spoken for row in rows[:3]] == ["", "[[V]]", ""]
    assert {row.pace for row in rows} == {0.9}
    voices = all_voices()
    assert not any(voices[row.voice].heldout for row in rows)
    count = Counter(voices[row.voice].name for row in rows)
    named = {name: number for name, number in count.items() if name}
    assert 0.3 < sum(named.values()) / 4000 < 0.4
    assert named["greta"] > 2 * max(number for name, number in named.items() if name != "greta")


def test_a_job_speaks_all_rows_of_its_texts(tmp_path) -> None:
    jobs = list(jobs_for([("A.", "", 1.0), ("Mm-hm.", "[[mm]]", 0.7)], tmp_path, 1, 5))
    spoken = [row for job in jobs if job.stem.name.startswith("train") for row in job.rows]
    assert {row[1:4] for row in spoken} == {("A.", "", 1.0), ("Mm-hm.", "[[mm]]", 0.7)}
    heldout = [row for job in jobs if not job.stem.name.startswith("train") for row in job.rows]
    assert all(isinstance(row, Row) and not row.spoken for row in heldout)


def test_a_reply_is_said_by_a_trained_voice_after_a_pause(tmp_path) -> None:
    rows = replies([f"{number}." for number in range(300)], 200, 5)
    assert len(rows) == 200
    assert all(row.text and row.reply and row.text != row.reply for row in rows[:20])
    assert sum(row.voice == row.reply_voice for row in rows) < 40
    assert {row.pause_frames for row in rows} == set(range(19))
    voices = all_voices()
    assert not any(voices[row.reply_voice].heldout for row in rows)
    jobs = {job.stem.name: job.rows for job in jobs_for([("A.", "", 1.0)], tmp_path, 1, 5, rows)}
    assert sorted(row for n in range(4) for row in jobs[f"replies000{n}"]) == sorted(rows)
    assert [row.text for row in jobs["train0000"]] == ["A."]


def test_a_reply_follows_with_its_phonemes_and_words_at_their_times() -> None:
    phones = {"_": 0, "m": 1}
    one, other = (
        Synthesiser().utterance(text, NAMED[0], phones) for text in ("Hello there.", "Yes, hi.")
    )
    assert one is not None
    assert other is not None
    both = followed_by(one, other, 13, 2)
    assert both is not None
    length = len(one.samples) + len(other.samples)
    assert len(both.samples) == length - 2 * 3840 + 2 * 1920
    assert len(both.samples) == len(both.phones) * 480
    begin = len(both.samples) - len(other.samples) + 3840
    assert np.array_equal(both.samples[begin:], other.samples[3840:])
    assert not both.samples[len(one.samples) - 3840 : begin].any()
    assert np.array_equal(both.phones[begin // 480 :], other.phones[8:])
    first, second = both.words
    assert first == one.words[0]
    assert second.place == 13 + other.words[0].place
    assert second.start_ms == pytest.approx(other.words[0].start_ms + (begin - 3840) / 24)
    assert followed_by(one, other, 13, 90) is None  # longer than 8 s


def test_a_job_writes_what_is_said_and_the_reply_as_one_text(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(speech, "Espeak", Synthesiser)
    alone, answered = Row(1, "Hello there."), Row(2, "Hello there.", "", 1.0, "Yes, hi.", 4, 3)
    too_long = answered._replace(pause_frames=90)
    run_job(speech.Job(tmp_path / "replies0000", [alone, answered, too_long]))
    corpus = Corpus(tmp_path, "replies", CPU)
    assert corpus.texts == ["Hello there.", "Hello there. Yes, hi."]
    assert corpus.voices.tolist() == [1, 2]
    assert corpus.frames[1] == 2 * corpus.frames[0] - 4 + 3
    first, second = read_words(tmp_path, "replies", None)
    assert [len(first), len(second)] == [1, 2]


def test_a_question_ends_with_a_question_mark() -> None:
    assert punctuated("how are you", random.Random(0)) == "How are you?"
    assert punctuated("well done", random.Random(0))[-1] in ".!"


# -- what the codec is pulled towards -------------------------------------------------------------
def test_the_perceptual_loss_grows_with_the_difference() -> None:
    perception = Perception(embedded()["izwi-tiny-asr"], CPU)
    true = voices(2, 24_000, 1.04)[:, : 13 * 1920]
    torch.manual_seed(0)
    noise = torch.randn_like(true)
    near, far = (perception.distance(true + size * noise, true) for size in (0.001, 0.1))
    assert perception.distance(true, true) == 0
    assert 0 < near < far / 3


def test_the_perceptual_loss_has_a_gradient_for_the_audio() -> None:
    perception = Perception(embedded()["izwi-tiny-asr"], CPU)
    true = voices(1, 24_000, 1.04)[:, : 13 * 1920]
    made = (0.5 * true).requires_grad_()
    (gradient,) = torch.autograd.grad(perception.distance(made, true), [made])
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0


def test_the_gap_loss_counts_output_in_silence_only() -> None:
    true = torch.zeros(1, 24_000)
    true[:, 12_000:] = 0.1
    made = torch.full_like(true, 0.002)
    assert gap_loss(made, true).item() == pytest.approx(0.002)
    made[:, 12_000:] = 0.5
    assert gap_loss(made, true).item() == pytest.approx(0.002)
    assert gap_loss(made, torch.full_like(true, 0.1)).item() == 0


def test_the_periodicity_loss_counts_noise_in_voiced_parts_only() -> None:
    torch.manual_seed(0)
    time = torch.arange(24_000) / 24_000
    true = sum(torch.cos(2 * torch.pi * 140 * n * time + n * n) for n in range(1, 40))
    assert isinstance(true, torch.Tensor)
    true, hiss, bands = 0.02 * true[None], 0.02 * torch.randn(1, 24_000), [(2000.0, 4000.0)]
    losses = [periodicity_loss(true + share * hiss, true, bands) for share in (0, 1, 2, 4)]
    assert losses[0] < 1e-5
    assert losses == sorted(losses)
    assert losses[3] > 0.2
    assert periodicity_loss(true, true + 0.5 * hiss, bands) > 0.004  # a breathy voice buzzes
    assert periodicity_loss(hiss, 5 * hiss, bands) < 1e-5  # nothing repeats in the original
    low = torch.cos(2 * torch.pi * 140 * time)[None]
    assert periodicity_loss(low + hiss, low, bands) < 1e-5  # nothing is in the band
    made = (true + 2 * hiss).requires_grad_()
    periodicity_loss(made, true, bands).backward()
    assert made.grad is not None
    better = made.detach() - 0.05 * made.grad / made.grad.abs().max()
    assert periodicity_loss(better, true, bands) < losses[2]


def test_fused_norms_equal_the_served_ones() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(6, 64).bfloat16() * 3, torch.rand(64).bfloat16() + 0.5
    fused = FusedNorms(CPU, torch.bfloat16).rms_norm(x, weight, 1e-6)
    served = TorchOps(CPU, torch.bfloat16).rms_norm(x, weight, 1e-6)
    assert fused.dtype == torch.bfloat16
    torch.testing.assert_close(fused, served, rtol=0.01, atol=0)


def test_writing_a_codec_and_reading_it_changes_nothing(tmp_path) -> None:
    folder = embedded()["izwi-tiny-tts"] / "speech_tokenizer"
    _, weights = load_codec(folder, CPU)
    write_codec(weights, tmp_path)
    written = tmp_path / "speech_tokenizer"
    config, again = load_codec(written, CPU)
    assert config == load_codec(folder, CPU)[0]
    assert again.keys() == weights.keys()
    assert all(again[name].equal(weights[name]) for name in weights)
    theirs, ours = (json.loads((f / _PREPROCESSOR).read_text()) for f in (folder, written))
    assert ours == theirs


# -- a judge that is no relative ------------------------------------------------------------------
def test_a_transcriber_may_have_another_number_of_layers(tmp_path) -> None:
    assert asr_config() is ASR
    (tmp_path / "config.json").write_text(json.dumps(asr_config(3)))
    config = read_config(tmp_path)
    assert (config.audio.encoder_layers, config.text.num_hidden_layers) == (3, 3)
    assert ASR["thinker_config"]["audio_config"]["encoder_layers"] == 5
