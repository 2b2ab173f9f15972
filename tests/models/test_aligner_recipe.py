"""What the aligner is trained on: words whose times are known, moved about in silence."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from izwi.checkpoints.registry import embedded
from izwi.errors import CheckpointError
from izwi_models.tiny.recipes.aligner import Placed, known_times, lengths_in_silence, placed_batch
from izwi_models.tiny.recipes.aligner_folder import complete
from izwi_models.tiny.recipes.speech import FRAME, SpokenWord, joined, on_words, time_words

TEXT = "Put it on the table, now."
# "on the" is said as one; the pause before "now" begins at 900 ms
SPOKEN = [
    SpokenWord(0, 0.0, 150.0),
    SpokenWord(4, 150.0, 300.0),
    SpokenWord(7, 300.0, 500.0),
    SpokenWord(14, 500.0, 900.0),
    SpokenWord(21, 1100.0, 1400.0),
]


def test_a_word_ends_at_the_next_one_or_at_a_pause() -> None:
    begins = [(word.place, word.start_ms) for word in SPOKEN]
    events = [(10.0, "p"), (900.0, "_:"), (1100.0, "_"), (1120.0, "n"), (1400.0, "_:")]
    assert time_words(begins, events) == SPOKEN


def test_an_event_at_the_end_of_a_clause_is_ignored() -> None:
    begins = [(word.place, word.start_ms) for word in SPOKEN]
    heard = [*begins[:4], (-1, 1100.0), begins[4], (TEXT.index(" now"), 1408.0)]
    assert on_words(TEXT, heard) == begins


def test_the_event_of_a_phrase_belongs_to_its_first_word() -> None:
    heard = [(0, 0.0), (len("That rule n"), 400.0), (len("That rule no "), 550.0)]
    begins = [(0, 0.0), (len("That rule "), 400.0), (len("That rule no "), 550.0)]
    assert on_words("That rule no longer", heard) == begins


@pytest.mark.parametrize(
    ("text", "spoken", "times"),
    [
        (TEXT, SPOKEN, [0, 150, 150, 300, 300, -1, -1, 500, 500, 900, 1100, 1400]),
        ("of the", [SpokenWord(0, 10.0, 90.0)], [10, -1, -1, 90]),
        ("now", [SpokenWord(0, 10.0, 90.0)], [10, 90]),
    ],
)
def test_borders_between_words_pronounced_as_one_are_unknown(text, spoken, times) -> None:
    assert known_times(text, spoken) == times


def a_corpus():
    """Two utterances of 4 and 3 codec frames whose samples count up from 1."""
    samples = torch.arange(1, 7 * FRAME + 1, dtype=torch.int16)
    frames = torch.tensor([4, 3])
    return SimpleNamespace(
        device="cpu", samples=samples, device_frames=frames, device_starts=torch.tensor([0, 4])
    )


@pytest.mark.parametrize(
    ("lead", "cut", "gap"), [(0, 0, 0), (700, 0, 0), (-700, 0, 0), (240, 2400, 960), (-240, 48, 24)]
)
def test_an_utterance_gets_silence_around_it_and_a_pause(lead, cut, gap) -> None:
    rows = torch.tensor([[1], [5], [lead], [cut], [gap]])
    audio = Placed(*rows).audio(a_corpus(), 5)[0] * 32768
    whole = torch.arange(4 * FRAME + 1, 7 * FRAME + 1)
    spoken = [torch.zeros(max(0, lead)), whole[:cut], torch.zeros(gap), whole[cut:]]
    wanted = torch.cat(spoken)[max(0, -lead) :]
    assert torch.equal(audio[: len(wanted)], wanted)
    assert not audio[len(wanted) :].any()


def test_word_times_move_with_the_audio() -> None:
    output_positions = SimpleNamespace(times=torch.tensor([[10.0, 50.0, 50.0, 90.0, 120.0, -1.0]]))
    rows = torch.tensor([[0], [9], [-24], [1200], [2400]])  # 1 ms is missing; 100 ms behind 50 ms
    times, known = Placed(*rows).times(output_positions)
    assert known.tolist() == [[True] * 5 + [False]]
    assert times[0, :5].tolist() == [9.0, 49.0, 149.0, 189.0, 219.0]


def test_drawn_silence_fits_its_utterance() -> None:
    generator = np.random.default_rng(0)
    frames = np.array([10, 40, 99, 100] * 50)
    lengths = lengths_in_silence(frames, generator)
    assert (lengths >= frames).all()
    assert lengths.max() <= 100
    assert (lengths[frames == 10] > 20).any()
    pauses = [[250.0, 500.0], []] * 100
    items = np.arange(0, 200, 3)
    drawn = placed_batch(items, lengths - frames, lengths, pauses, generator)
    _, _, leads, cuts, gaps = drawn
    assert (leads + gaps <= (lengths - frames)[items] * FRAME).all()
    assert (leads > -3840).all()  # what is missing was silent
    assert not gaps[items % 2 == 1].any()
    assert set(cuts[gaps > 0]) == {6000, 12_000}


def test_the_embedded_folder_equals_the_recipes_output(tmp_path) -> None:
    theirs = embedded()["izwi-tiny-aligner"]
    (tmp_path / "izwi-tiny-asr").symlink_to(embedded()["izwi-tiny-asr"])
    ours = tmp_path / "izwi-tiny-aligner"
    ours.mkdir()
    (ours / "model.safetensors").symlink_to(theirs / "model.safetensors")
    complete(ours, tmp_path / "izwi-tiny-asr")
    assert {p.name for p in ours.iterdir()} == {p.name for p in theirs.iterdir()}
    for path in ours.iterdir():
        assert path.read_bytes() == (theirs / path.name).read_bytes(), path.name


def test_an_unexpected_tensor_is_named_in_the_error(tmp_path) -> None:
    save_file({"thinker.ear": np.zeros(1, np.float16)}, tmp_path / "own.safetensors")
    with pytest.raises(CheckpointError, match=r"thinker\.ear"):
        complete(tmp_path, embedded()["izwi-tiny-asr"])


def test_each_sentence_is_spoken_once_alone_or_joined() -> None:
    sentences = [f"Sentence {n}." for n in range(101)]
    assert joined(sentences, 0.0, 5) == sentences
    some = joined(sentences, 0.5, 5)
    assert " ".join(some) == " ".join(sentences)
    assert {text.count(".") for text in some} == {1, 2}
