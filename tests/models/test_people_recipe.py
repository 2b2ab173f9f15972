"""Speech that sounds like people: weights, speakers, phonemes and utterances of the recipes."""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from izwi_models.tiny.recipes import augment, features, spectral
from izwi_models.tiny.recipes.data import Corpus, read_words
from izwi_models.tiny.recipes.decoding import Speaker
from izwi_models.tiny.recipes.people import kokoro_weights, run, voice_speech
from izwi_models.tiny.recipes.people import phrases as phrases_module
from izwi_models.tiny.recipes.people.casual import casual
from izwi_models.tiny.recipes.people.flite_speech import fitted, write_unlabelled
from izwi_models.tiny.recipes.people.kokoro import expand, styled_snake
from izwi_models.tiny.recipes.people.kokoro_speech import (
    FIRST_LABEL,
    LABELS,
    UNLABELLED,
    Line,
    label_table,
    line_words,
    trimmed,
    write,
)
from izwi_models.tiny.recipes.people.kokoro_voices import (
    draw_speakers,
    moved_pitch,
    resampled,
    slow_noise,
    slurred,
    uneven,
)
from izwi_models.tiny.recipes.people.phonemes import Phonemizer
from izwi_models.tiny.recipes.people.phrases import LONGEST, phrases
from izwi_models.tiny.recipes.people.piper_speech import token_ids
from izwi_models.tiny.recipes.speech import EDGE, FRAME, LABEL, PHONES, SAMPLE_RATE, SILENCE

EMBEDDED = Path(run.__file__).parents[2]
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ("/encoder/F0.1/conv1x1/Conv_quant", "predictor.F0.1.conv1x1"),
        ("/encoder/text_encoder/cnn.2/cnn.2.0/Conv_quant", "text_encoder.cnn.2.0"),
        ("/decoder/decoder/asr_res/asr_res.0/Conv_quant", "decoder.asr_res.0"),
        ("/encoder/bert/encoder/ffn_output_11/MatMul_quant", "bert.encoder.ffn_output"),
        (
            "/encoder/predictor/text_encoder/lstms.5/fc/Gemm_MatMul_quant",
            "predictor.text_encoder.lstms.5.fc",
        ),
    ],
)
def test_nodes_have_the_names_of_the_published_modules(node: str, name: str) -> None:
    assert kokoro_weights.module_name(node) == name


def test_gates_are_reordered() -> None:
    assert kokoro_weights._gates(np.arange(8)).tolist() == [0, 1, 4, 5, 6, 7, 2, 3]


def test_weights_are_what_was_written(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    levels = draw.integers(-100, 100, (6, 4, 3)).astype(np.int16)
    scale = draw.uniform(0.01, 0.1, 6).astype(np.float32)
    large = draw.standard_normal((300, 400)).astype(np.float32)
    small = draw.standard_normal(5).astype(np.float16)
    tensors = {
        "a": (levels, scale),
        "b": (levels, scale[:1]),
        "c": (large, None),
        "d": (small, None),
    }
    kokoro_weights.write(tensors, tmp_path / "weights")
    read = kokoro_weights.load(tmp_path / "weights")
    assert np.array_equal(read["a"], levels * scale[:, None, None])
    assert np.array_equal(read["b"], levels * scale[0])
    assert np.array_equal(read["d"], small)
    steps = np.abs(large).max(1, keepdims=True) / 127
    assert (np.abs(read["c"] - large) <= 0.51 * steps).all()
    assert (tmp_path / "weights").stat().st_size < 150_000


def test_phonemes_last_as_many_frames_as_the_durations_say() -> None:
    values = torch.tensor([[[1.0], [2.0], [3.0]], [[4.0], [5.0], [0.0]]])
    made = expand(values, torch.tensor([[1, 3, 2], [2, 4, 0]]), 6)
    assert made[..., 0].tolist() == [[1, 2, 2, 2, 3, 3], [4, 4, 5, 5, 5, 5]]


def test_styled_norms_do_not_depend_on_the_level() -> None:
    torch.manual_seed(0)
    x, gain, bias = torch.randn(2, 3, 50), torch.randn(2, 3), torch.randn(2, 3)
    alpha = torch.rand(1, 3, 1) + 0.5
    made = styled_snake(x, gain, bias, alpha)
    assert torch.allclose(styled_snake(7 * x + 3, gain, bias, alpha), made, atol=1e-3)
    y = (x - x.mean(2, keepdim=True)) / x.std(2, keepdim=True, correction=0)
    y = y * (1 + gain[..., None]) + bias[..., None]
    assert torch.allclose(made, y + torch.sin(alpha * y) ** 2 / alpha, atol=1e-3)


def _tone_hertz(audio: torch.Tensor, rate: int) -> float:
    return (
        float(torch.fft.rfft(audio * torch.hann_window(len(audio))).abs().argmax())
        * rate
        / len(audio)
    )


def test_audio_that_is_played_faster_is_shorter_and_higher() -> None:
    tone = torch.sin(2 * torch.pi * 440 * torch.arange(24_000) / 24_000).repeat(2, 1)
    made = resampled(tone, torch.tensor([1.25, 0.8]))
    assert made.shape == (2, 30_000)
    assert not made[0, 19_201:].any()
    assert _tone_hertz(made[0, :19_200], 24_000) == pytest.approx(550, abs=2)
    assert _tone_hertz(made[1], 24_000) == pytest.approx(352, abs=2)
    assert made[0, 100:19_000].abs().max() == pytest.approx(1.0, abs=0.02)


def test_pitch_moves_where_there_is_one() -> None:
    hertz = torch.tensor([[11.0, 100.0, 200.0, 400.0, 12.0], [9.0, 9.0, 9.0, 9.0, 9.0]])
    moved = moved_pitch(hertz, torch.tensor([1.5, 1.5]), torch.tensor([0.5, 0.5]))
    assert moved[0].tolist() == pytest.approx([11, 300 / 2**0.5, 300, 300 * 2**0.5, 12])
    assert torch.equal(moved[1], hertz[1])


def test_every_utterance_has_another_speaker() -> None:
    torch.manual_seed(4)
    names = ("jf_a", "jf_b", "jm_kumo")
    tables = {name: torch.randn(510, 256) for name in names}
    speakers = draw_speakers(tables, torch.full((400,), 30), torch.Generator().manual_seed(1))
    man = (speakers.styles - tables["jm_kumo"][30]).norm(dim=1)
    woman = torch.stack([speakers.styles - tables[name][30] for name in names[:2]]).norm(dim=2)
    assert 0.25 < (man < woman.min(0).values).float().mean() < 0.6
    assert len(speakers.styles.unique(dim=0)) == 400
    for values, least, most in (
        (speakers.pitch, 0.65, 1.52),
        (speakers.warp, 0.81, 1.24),
        (speakers.pace, 0.7, 1.5),
        (speakers.unevenness, 0.0, 0.4),
        (speakers.wander, 0.0, 0.25),
        (speakers.slur, 0.0, 0.5),
    ):
        assert least <= values.min() < values.max() <= most


def test_phonemes_get_uneven_durations() -> None:
    torch.manual_seed(7)
    durations = torch.full((200, 60), 8)
    durations[:, 50:] = 0
    made = uneven(durations, torch.tensor([0.0, 0.4]).repeat(100))
    assert not made[:, 50:].any()
    assert (made[::2, :50] == 8).all()
    octaves = (made[1::2, :50] / 8).log2()
    assert octaves.std() == pytest.approx(0.4, abs=0.05)
    neighbours = torch.corrcoef(torch.stack([octaves[:, :-1].ravel(), octaves[:, 1:].ravel()]))
    assert 0.2 < neighbours[0, 1] < 0.6
    assert (uneven(torch.ones(50, 40, dtype=torch.long), torch.ones(50)) >= 1).all()


def test_slow_noise_has_level_one_and_no_jumps() -> None:
    torch.manual_seed(8)
    noise = slow_noise(300, 240, 24, CPU)
    assert noise.shape == (300, 240)
    assert noise.std() == pytest.approx(1.0, abs=0.1)
    assert noise.diff(dim=1).abs().max() < 0.5


def test_slurred_sound_takes_from_both_neighbours() -> None:
    frames = torch.zeros(2, 5, 3)
    frames[:, 2] = 1.0
    made = slurred(frames, torch.tensor([0.5, 0.0]))
    assert made[0, :, 0].tolist() == [0, 0.25, 0.5, 0.25, 0]
    assert torch.equal(made[1], frames[1])


def test_casual_speech_has_as_many_words() -> None:
    read = "plˈiz ˈɛntəɹ jʊɹ nˈu pˈæswɜɹd, ænd ðə lˈæst wˈʌn. ə dˈɑɡ hæd ɪt!"
    said = [casual(read, random.Random(seed)) for seed in range(300)]
    assert all(len(each.split(" ")) == len(read.split(" ")) for each in said)
    assert all(word.strip("ˈˌ,.?!;:") for each in said for word in each.split(" "))
    assert 0.3 < said.count(read) / len(said) < 0.8
    assert len(set(said)) > 80
    assert any("ən ðə" in each for each in said)
    assert any("lˈæs wˈʌn" in each for each in said)
    assert casual(read, random.Random(5)) == said[5]


def test_ids_of_a_piper_voice_stand_between_others() -> None:
    table = {"^": [1], "$": [2], "_": [0], "a": [14], "b": [15]}
    assert token_ids("ab?a", table) == [1, 0, 14, 0, 15, 0, 14, 0, 2]


def _vocabulary() -> dict[str, int]:
    letters = " ˈˌ,.?!;:AIOQTWYabdfhijklmnpstuvwzæðŋɑɒɔəɛɜɡɪɹʃʊʌʒʤʧθᵊᵻ"
    return {letter: number for number, letter in enumerate(letters, 1)}


def test_phonemes_have_labels_of_their_own() -> None:
    vocabulary = _vocabulary()
    table = label_table(vocabulary, 7)
    assert table[0] == 7
    assert table[vocabulary["ˈ"]] == table[vocabulary[" "]] == UNLABELLED
    known = table[table >= FIRST_LABEL]
    known = known[known < UNLABELLED]
    assert sorted(known.tolist()) == list(range(FIRST_LABEL, LABELS))


def test_words_are_timed_by_their_phonemes() -> None:
    line = Line("Hi, a dog.", (0,) * 12, "_hI, ə dˈɑɡ._")
    durations = torch.tensor([10, 2, 4, 4, 2, 3, 1, 2, 1, 5, 2, 6, 8])
    words = line_words(line, durations, 1.0, -2400)
    assert words == [(0, 150.0, 300.0), (4, 450.0, 525.0), (6, 550.0, 800.0)]
    assert line_words(Line("Hi there dog.", line.ids, line.letters), durations, 1.0, 0)
    assert not line_words(Line("Hi dog.", line.ids, line.letters), durations, 1.0, 0)


def test_utterances_are_trimmed_to_whole_frames(tmp_path: Path) -> None:
    audio = torch.zeros(3, 48_000)
    audio[0, 10_000:30_000] = 0.25
    audio[1, 5000:20_000] = torch.nan
    audio[2, 6000:7000] = 0.5  # too short
    labels = torch.arange(80).repeat(3, 1)  # one for 600 samples
    lines = [Line("One.", (0, 1, 0), "_a_")] * 3
    made = trimmed(audio, labels, torch.ones(3), lines, [torch.tensor([40, 20, 20])] * 3)
    assert made.counts == [15 * FRAME, 0, 0]
    samples = made.samples[0, : made.counts[0]]
    assert np.flatnonzero(samples)[[0, -1]].tolist() == [EDGE, EDGE + 19_999]
    assert samples.max() == pytest.approx(0.6 * 32767, abs=1)
    assert made.labels[0, EDGE // LABEL] == (10_000 + LABEL // 2) // 600
    seconds = write([made], tmp_path / "people0000")
    assert seconds == made.counts[0] / SAMPLE_RATE
    meta = json.loads((tmp_path / "people0000.json").read_text())
    assert meta == [[0, "One.", made.counts[0]]]
    assert len(np.load(tmp_path / "people0000.phones.npy")) == made.counts[0] // LABEL
    assert (tmp_path / "people0000.words.jsonl").read_text().count("\n") == 1


def test_other_rates_fit_into_the_corpus() -> None:
    tone = np.zeros(16_000, np.int16)
    tone[2000:14_000] = 8000 * np.sin(np.arange(12_000) * 2 * np.pi * 300 / 16_000)
    made = fitted(tone, 16_000, 1.2)
    assert made is not None
    assert len(made) % FRAME == 0
    speech = torch.from_numpy(made[EDGE : EDGE + 14_900].astype(np.float32))
    assert _tone_hertz(speech, SAMPLE_RATE) == pytest.approx(360, abs=2)
    assert fitted(np.zeros(16_000, np.int16), 16_000) is None
    assert fitted(np.tile(tone, 9), 16_000) is None


def test_utterances_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    clips = [np.full(3 * FRAME, 5, np.int16), None, np.full(FRAME, 7, np.int16)]
    said = [(0, "One.", clips[0]), (1, "Two.", clips[1]), (2, "Three.", clips[2])]
    assert write_unlabelled(tmp_path / "flite0000", said) == 4 * FRAME / SAMPLE_RATE
    meta = json.loads((tmp_path / "flite0000.json").read_text())
    assert meta == [[0, "One.", 3 * FRAME], [2, "Three.", FRAME]]
    samples = np.fromfile(tmp_path / "flite0000.i16", np.int16)
    assert samples.tolist() == [5] * 3 * FRAME + [7] * FRAME
    labels = np.load(tmp_path / "flite0000.phones.npy")
    assert len(labels) == 4 * FRAME // LABEL
    assert (labels == UNLABELLED).all()
    assert (tmp_path / "flite0000.words.jsonl").read_text() == "[]\n[]\n"


def test_phrases_are_short_and_differ() -> None:
    drawn = phrases(400, 1)
    assert len(set(drawn)) == 400
    assert drawn == phrases(400, 1)
    assert max(map(len, drawn)) <= LONGEST
    assert not any("{" in text or "|" in text for text in drawn)
    said = " ".join(drawn).lower()
    assert all(word in said for word in ("pound key", "extension", "mailbox", "what is"))


def test_phonemes_are_written_as_kokoro_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def __init__(self) -> None:
            self.espeak_TextToPhonemes = self.read

        def read(self, place: object, *_: int) -> bytes:
            place._obj.value = None  # type: ignore[attr-defined]
            return "wˈɔːɾɚ ɹˈe^ɪn ðə d^ʒˈʌd^ʒ".encode()

    reader = Phonemizer.__new__(Phonemizer)
    monkeypatch.setattr(reader, "_library", Library(), raising=False)
    from izwi_models.tiny.recipes.people.phonemes import _AMERICAN

    monkeypatch.setattr(reader, "_map", _AMERICAN, raising=False)
    assert reader.read("Water rain, the judge!") == ("wˈɔTəɹ ɹˈAn ðə ʤˈʌʤ, wˈɔTəɹ ɹˈAn ðə ʤˈʌʤ!")


def test_channels_colour_speech_and_keep_silence() -> None:
    torch.manual_seed(5)
    silent = augment.through_channels(torch.zeros(4, 8000))
    assert not silent.abs().max() > 1e-5
    noise = torch.randn(200, 8000) * 0.1
    made = augment.through_channels(noise)
    assert made.isfinite().all()
    power = torch.fft.rfft(made).abs().square()
    high = power[:, 2200:].sum(1) / power.sum(1)  # above 4.4 kHz
    assert 0.15 < (high < 0.01).float().mean() < 0.6
    assert (high > 0.1).float().mean() > 0.2


def test_frequencies_are_warped() -> None:
    power = torch.zeros(2, 201, 3)
    power[:, 100] = 1.0
    made = spectral.warped(power, torch.tensor([1.2, 0.8]))
    assert made.argmax(1)[:, 0].tolist() == [120, 80]
    audio = torch.sin(torch.arange(16_000) * 0.5)[None]
    kept = torch.tensor([16_000])
    plain = spectral.whisper_mel(audio, kept)
    assert torch.allclose(spectral.whisper_mel(audio, kept, torch.ones(1)), plain, atol=1e-5)


def test_colours_are_smooth_and_differ() -> None:
    torch.manual_seed(9)
    field = features.coloured(torch.zeros(64, 128, 400))
    strengths = field.flatten(1).std(1)
    assert strengths.min() < 0.03
    assert 0.06 < strengths.max() < 0.2
    assert field.diff(dim=2).abs().max() < 0.06
    assert field.diff(dim=1).abs().max() < 0.12


def test_blurred_bands_lose_harmonics() -> None:
    torch.manual_seed(10)
    mel = torch.zeros(64, 128, 10)
    mel[:, ::2] = 1.0
    contrast = features.blurred(mel)[:, 20:100].diff(dim=1).abs().mean((1, 2))
    assert 0.3 < (contrast == 1).float().mean() < 0.7
    assert contrast.min() < 0.3


def test_unsteady_speech_stays_within_70_ms() -> None:
    torch.manual_seed(11)
    ramp = torch.arange(400.0).expand(64, 128, 400)
    moved = features.unsteady(ramp) - ramp
    assert 2.0 < moved.abs().max() <= 7.001
    assert torch.equal(moved[:, 0], moved[:, -1])


def test_harder_features_hide_more() -> None:
    torch.manual_seed(6)
    audio, frames = torch.randn(64, 40_000) * 0.1, torch.full((64,), 31)

    def hidden(harder: bool) -> float:
        mel = features.augmented_mel(audio, frames, harder)
        return float((mel == -0.5).float().mean())

    assert hidden(True) > 1.4 * hidden(False)


def test_the_voice_speaks_for_the_corpus(tmp_path: Path) -> None:
    speaker = Speaker(EMBEDDED / "izwi-tiny-tts", CPU)
    texts = ["We are here.", "Call me."]
    (batch,) = voice_speech.speak(speaker, texts, 2, seed=1)
    assert sorted(text for _, text, _ in batch) == sorted(texts)
    assert all(0.05 < np.abs(samples / 32768).max() <= 1 for _, _, samples in batch)
    seconds = voice_speech.write(batch, tmp_path / "voice0000")
    corpus = Corpus(tmp_path, "voice", CPU)
    assert len(corpus) == 2
    assert corpus.frames.sum() * FRAME / SAMPLE_RATE == seconds
    silence = json.loads(PHONES.read_text())[SILENCE]
    assert set(corpus.phones.tolist()) <= {UNLABELLED, silence}
    assert read_words(tmp_path, "voice", None) == [[], []]


def test_of_the_voices_labels_only_silence_is_known() -> None:
    loud = (np.sin(np.arange(LABEL) / 5) * 3000).astype(np.int16)
    quiet, rest = (loud / 30).astype(np.int16), loud[:100]
    labels = voice_speech.silence_labels(np.concatenate([loud, quiet, quiet * 0, loud, rest]))
    silence = json.loads(PHONES.read_text())[SILENCE]
    assert labels.tolist() == [UNLABELLED, silence, silence, UNLABELLED]


def test_what_is_there_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(run, "begin", lambda _: None)
    monkeypatch.setattr(run, "run", lambda stages: started.append([s.name for s in stages]))
    monkeypatch.setattr("sys.argv", ["run", str(tmp_path / "work"), str(tmp_path / "out")])
    run.main()
    first = [[name] for name in run.PREPARED]
    assert started == [*first, list(run.SPOKEN), list(run.TRAINED)]
    monkeypatch.setattr("sys.argv", [*sys.argv, "--stages", "kokoro", "train"])
    started.clear()
    run.main()
    assert [names for names in started if names] == [["kokoro"], ["train"]]
    options = argparse.Namespace(
        work=tmp_path,
        out=tmp_path,
        package=tmp_path,
        speech_seconds=1.0,
        train_seconds=1.0,
        rate=1e-3,
        schedule=(0.0, 1.0),
        seed=1,
    )
    stages = run.plan(options, 16)
    assert not any(stage.is_done for stage in stages.values())
    (tmp_path / "clips.npz").touch()
    assert stages["clips"].is_done


def test_a_stage_that_fails_ends_the_others(tmp_path: Path) -> None:
    bad = run.Stage("bad", ("-c", "raise SystemExit(3)"), tmp_path / "no")
    slow = run.Stage("slow", ("-c", "import time; time.sleep(600)"), tmp_path / "no")
    done = run.Stage("done", ("-c", "raise SystemExit(4)"), tmp_path)
    with pytest.raises(SystemExit, match="bad failed with status 3"):
        run.run([done, bad, slow])


def test_some_sentences_are_left_unspoken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = [f"Sentence {number}." for number in range(10)]
    (tmp_path / "train.txt").write_text("\n".join(sentences))
    paths = [str(tmp_path / name) for name in ("train.txt", "spoken", "unspoken")]
    monkeypatch.setattr("sys.argv", ["phrases", *paths, "--number", "5"])
    phrases_module.main()
    spoken = (tmp_path / "spoken").read_text().splitlines()
    assert (tmp_path / "unspoken").read_text().splitlines() == sentences[:3]
    assert set(sentences[3:]) < set(spoken)
    assert len(spoken) == 12
