"""The command line through its own runner, over the fake engine."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import soundfile as sf

from tests.api.conftest import FakeTranscription


def test_help_needs_no_torch():
    code = (
        "import sys; from izwi_api.cli.main import app; "
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_say_writes_a_file_without_a_terminal(cli):
    result = cli("say", "hello")
    assert "0.40 s of audio" in result.stderr
    assert sf.info(cli.folder / "speech.wav").duration == pytest.approx(0.4)
    assert [path.name for path in cli.folder.iterdir()] == ["speech.wav"]


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "opus", "ogg"])
def test_say_writes_what_the_suffix_says(cli, suffix):
    cli("say", "hello there", "--out", f"a.{suffix}", "--voice", "bob")
    assert sf.info(cli.folder / f"a.{suffix}").duration == pytest.approx(0.88, abs=0.1)


def test_say_saves_codes_and_passes_every_option_on(cli, tone_wav):
    (cli.folder / "ref.wav").write_bytes(tone_wav(1.0))
    cli(
        *("say", "-", "--out", "a.wav", "--seed", "5", "--temperature", "0"),
        *("--save-codes", "codes", "--language", "english", "--instruct", "softly"),
        *("--text-mode", "full", "--max-new-tokens", "4"),
        *("--ref-audio", "ref.wav", "--ref-text", "la"),
        input="one two",
    )
    codes = np.load(cli.folder / "codes")
    assert (codes.shape, codes.dtype) == ((4, 4), np.int64)
    ask = cli.speech.asked[-1]
    assert (ask.text, ask.seed, ask.temperature, ask.language) == ("one two", 5, 0.0, "english")
    assert (ask.instruct, ask.text_mode, ask.voice.text) == ("softly", "full", "la")
    assert len(ask.voice.samples) == 24_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["say", "  "], "no text"),
        (["say", "hi", "--voice", "nobody"], "nobody"),
        (["say", "hi", "--model", "missing"], "missing"),
        (["say", "hi", "--out", "a.doc"], ".wav"),
        (["say", "hi", "--ref-text", "x"], "--ref-audio"),
        (["say", "hi", "--ref-audio", "none.wav", "--x-vector-only"], "cannot read"),
        (
            ["say", "hi", "--voice", "x", "--ref-audio", "none.wav"],
            "use either --voice or --ref-audio, not both",
        ),
        (["say", "hi", "--seed", str(2**63)], "seed"),
        (["transcribe", "none.wav"], "cannot read"),
        (["transcribe", "text.wav"], "not audio"),
        (["clone", "none.wav", "--name", "../x", "--yes"], "name"),
        (["clone", "none.wav", "--name", "x", "--yes"], "cannot read"),
        (
            ["clone", "none.wav", "--name", "x", "--text", "hi", "--x-vector-only"],
            "use either --text or --x-vector-only, not both",
        ),
    ],
)
def test_bad_input_is_one_line_and_code_2(cli, arguments, message):
    (cli.folder / "text.wav").write_text("this is text " * 99)
    result = cli(*arguments, code=2)
    assert message in result.stderr
    assert result.stderr.strip().count("\n") == 0
    assert not result.stdout
    assert [path.name for path in cli.folder.iterdir()] == ["text.wav"]


def test_other_failures_are_code_1_and_leave_no_file(cli):
    assert "talker.norm.weight" in cli("say", "hi", "--model", "broken", code=1).stderr
    (cli.folder / "a.wav").write_bytes(b"old")
    cli("say", "hello\x01", "--out", "a.wav", code=1)
    assert (cli.folder / "a.wav").read_bytes() == b"old"
    assert len(list(cli.folder.iterdir())) == 1
    assert not cli.engine.live


def test_transcribe(cli, tone_wav, monkeypatch):
    (cli.folder / "a.wav").write_bytes(tone_wav(2.0))
    assert cli("transcribe", "a.wav").stdout == "word word\n"
    fields = json.loads(cli("transcribe", "a.wav", "--json").stdout)
    assert fields == {
        "text": "word word",
        "language": "English",
        "token_ids": [ord(character) for character in "English|word word"],
    }
    assert cli("transcribe", "a.wav", "--max-new-tokens", "12").stdout == "word\n"
    two = cli("transcribe", "a.wav", "a.wav").stdout
    assert two == "a.wav: word word\na.wav: word word\n"
    asked = "transcribe", "a.wav", "--prompt", "Izwi"
    assert "changed nothing" not in cli(*asked).output
    monkeypatch.setattr(FakeTranscription, "follows_context", False)
    assert "--prompt changed nothing" in cli(*asked).output


def test_clone_then_say(cli, tone_wav):
    (cli.folder / "ref.wav").write_bytes(tone_wav(2.0))
    cli("clone", "ref.wav", "--name", "me", code=2, input="n\n")
    cli("clone", "ref.wav", "--name", "me", input="y\n")
    cli("say", "hello", "--voice", "me", "--out", "a.wav")
    voice = cli.speech.asked[-1].voice
    assert voice.text == "word word"  # nobody gave it, so it was transcribed
    assert "exists" in cli("clone", "ref.wav", "--name", "me", "--yes", code=2).stderr
    cli("clone", "ref.wav", "--name", "x", "--x-vector-only", "--yes")
    cli("say", "hello", "--voice", "x", "--out", "a.wav")
    assert cli.speech.asked[-1].voice.text is None
    listed = cli("voices").stdout
    assert "Ann\tspeaker\n" in listed
    assert "me\tcloned\n" in listed
    assert "alloy\talias of Ann\n" in listed


def test_models(cli):
    cli("models")
