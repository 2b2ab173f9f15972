"""The command line as a new user tries it, without its documentation."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from importlib.metadata import version

import numpy as np
import pytest
import soundfile as sf

from izwi.checkpoints.registry import Registry, find
from izwi.errors import ModelNotFound, TooLarge
from izwi_api.cli import audio_out
from izwi_api.cli.target import choose_target
from izwi_api.console import explain
from izwi_api.serve.announcement import announce, page_url
from izwi_api.telemetry.log_lines import JsonLines
from izwi_api.usage.keys import KeyRing

VERBS = (
    "say",
    "transcribe",
    "align",
    "chat",
    "talk",
    "clone",
    "draw",
    "voices",
    "models",
    "keys",
    "serve",
    "bench",
)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def terminal(monkeypatch):
    """Stdout is a terminal, on a machine without a player."""
    monkeypatch.setattr(audio_out, "find_player", lambda: None, raising=False)
    for module in ("audio_out", "target"):
        monkeypatch.setattr(f"izwi_api.cli.{module}.at_terminal", lambda: True, raising=False)
        monkeypatch.setattr(f"izwi_api.cli.{module}.find_player", lambda: None, raising=False)


# -- the verbs themselves ------------------------------------------------------------------------
def test_the_version(cli):
    assert cli("--version").stdout == f"izwi {version('izwi')}\n"


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_flags_without_a_type(cli, verb):
    shown = cli(verb, "--help").stdout
    assert "--help" in shown
    assert "bool" not in shown
    assert cli(verb, "-h").stdout == shown


@pytest.mark.parametrize("verb", ["voices", "models", "keys"])
def test_a_verb_that_is_misspelt(cli, verb):
    assert "No such command 'lsit'" in cli(verb, "lsit", code=2).stderr


# -- say: where the audio goes -------------------------------------------------------------------
def test_say_at_another_speed(cli, server):
    cli("say", "hello there", "--out", "a.wav")
    cli("say", "hello there", "--speed", "2", "--out", "fast.wav")
    seconds = sf.info(cli.folder / "a.wav").duration
    assert sf.info(cli.folder / "fast.wav").duration == pytest.approx(seconds / 2, abs=0.05)
    cli("say", "hello there", "--speed", "0.5", "--out", "slow.wav", "--server", server.url)
    assert sf.info(cli.folder / "slow.wav").duration == pytest.approx(seconds * 2, abs=0.1)
    cli("say", "hello", "--speed", "9", code=2)


def test_a_format_and_a_suffix_that_disagree(cli):
    result = cli("say", "hello", "--format", "mp3", "--out", "x.wav", code=2)
    assert "--format mp3" in result.stderr
    assert "x.wav" in result.stderr
    assert not cli.opened
    cli("say", "hello", "--format", "opus", "--out", "x.ogg")
    cli("say", "hello", "--format", "mp3", "--out", "x.bin")
    assert names_in(cli.folder) == ["x.bin", "x.ogg"]


def test_without_a_player_it_says_where_the_audio_went(cli, terminal):
    assert "No audio player found" in cli("say", "hello").stderr
    assert names_in(cli.folder) == ["speech.wav"]


def test_a_file_that_was_not_named_is_not_overwritten(cli):
    (cli.folder / "speech.wav").write_bytes(b"mine")
    result = cli("say", "hello", code=2)
    assert "speech.wav exists" in result.stderr
    assert "--out" in result.stderr
    assert (cli.folder / "speech.wav").read_bytes() == b"mine"
    assert not cli.opened
    assert "in place of" in cli("say", "hello", "--out", "speech.wav").stderr
    assert "in place of" not in cli("say", "hello", "--out", "new.wav").stderr


def test_bytes_do_not_go_to_a_terminal(cli, terminal):
    assert "terminal" in cli("say", "hello", "--out", "-", code=2).stderr
    assert "terminal" in cli("voices", "export", "x", "--out", "-", code=2).stderr
    assert not cli.opened


@pytest.mark.parametrize("option", ["--out", "--words", "--save-codes"])
def test_the_error_names_a_missing_folder_as_it_was_given(cli, option):
    result = cli("say", "hello", option, "sub/e.wav", code=2)
    assert f"{option} sub/e.wav: the folder sub does not exist" in result.stderr
    assert not cli.opened
    assert names_in(cli.folder) == []


def test_an_error_of_the_system_names_the_users_file(tmp_path):
    with pytest.raises(OSError) as caught, audio_out.whole_file(tmp_path / "sub" / "e.wav"):
        pass
    assert explain(caught.value) == f"{tmp_path}/sub/e.wav: No such file or directory"
    (tmp_path / "folder.wav").mkdir()
    with pytest.raises(OSError) as caught, audio_out.whole_file(tmp_path / "folder.wav"):
        pass
    assert explain(caught.value).startswith(f"{tmp_path}/folder.wav: ")
    assert names_in(tmp_path) == ["folder.wav"]


# -- words: what a message says ------------------------------------------------------------------
def test_a_voice_that_is_unknown(cli, server):
    for more in ([], ["--server", server.url]):
        said = cli("say", "hello", "--voice", "nobody", *more, code=2).stderr
        assert "'nobody'" in said
        assert "`izwi voices` lists them" in said
        assert "GET" not in said
    assert "`izwi voices`" in cli("voices", "show", "nobody", code=2).stderr


def test_lists_are_written_as_people_do():
    with pytest.raises(ModelNotFound) as caught:
        find("nosuch")
    assert "izwi-tiny-asr, izwi-tiny-chat, izwi-tiny-tts" in str(caught.value)
    with pytest.raises(ModelNotFound) as located:
        Registry(None).locate("nosuch")  # type: ignore[arg-type]
    assert not re.search(r"[\[\]]", f"{caught.value}{located.value}")


def test_a_dtype_that_is_unknown(cli):
    said = cli("doctor", "--dtype", "float99", code=1).stdout
    assert "bfloat16, float16, float32" in said


def test_too_long_gives_the_limit():
    from izwi_models.qwen3_asr.samples import checked_samples

    with pytest.raises(TooLarge, match="at most 8 s"):
        checked_samples(np.zeros(9 * 16_000, np.float32), 8.0)


def test_a_voice_is_looked_up_before_the_question(cli, server, tone_wav):
    for more in ([], ["--server", server.url]):
        result = cli("voices", "delete", "nobody", *more, input="y\n", code=2)
        assert "nobody" in result.stderr
        assert "?" not in result.stderr
    said = cli("voices", "delete", "Ann", "--server", server.url, input="y\n", code=2).stderr
    assert "?" not in said
    (cli.folder / "ref.wav").write_bytes(tone_wav(3.0))
    cli("clone", "ref.wav", "--name", "me", "--yes", "--x-vector-only", "--quiet")
    key = json.loads(cli("voices", "show", "me").stdout)["id"]
    assert "Delete voice me?" in cli("voices", "delete", key, input="n\n", code=2).stderr
    assert cli.voices.names() == ["me"]
    cli("voices", "delete", key, input="y\n")
    assert cli.voices.names() == []


# -- keys ----------------------------------------------------------------------------------------
def test_keys_are_listed_and_removed(cli):
    file = cli.folder / "home.toml"
    here = ("--file", str(file))
    assert "izwi keys add" in cli("keys", *here).stderr
    assert not file.exists()
    cli("keys", "add", "ann", *here, "--requests-per-minute", "60")
    bob = cli("keys", "add", "bob", *here).stdout.strip()
    listed = cli("keys", *here).stdout
    assert listed == "ann\t60 requests per minute\nbob\tno limits\n"
    assert [
        json.loads(line) for line in cli("keys", "list", "--json", *here).stdout.splitlines()
    ] == [
        {"name": "ann", "requests_per_minute": 60},
        {"name": "bob"},
    ]
    seconds = [0.0]
    ring = KeyRing(file, clock=lambda: seconds[0])
    assert ring.find(bob) is not None
    assert "no key 'eve'; it has: ann, bob" in cli("keys", "remove", "eve", *here, code=2).stderr
    cli("keys", "remove", "bob", *here)
    seconds[0] = 2.0
    assert ring.find(bob) is None
    assert cli("keys", *here).stdout == "ann\t60 requests per minute\n"
    cli("keys", "remove", "ann", *here)
    assert cli("keys", *here).stdout == ""
    assert names_in(cli.folder) == ["home.toml"]
    cli("keys", "remove", "ann", "--file", "none.toml", code=1)
    assert names_in(cli.folder) == ["home.toml"]


# -- serve ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("url", "page"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://0.0.0.0:81", "http://127.0.0.1:81"),
        ("https://[::]:8443", "https://[::1]:8443"),
        ("https://[fe80::1]:8443", "https://[fe80::1]:8443"),
        ("http://example.org:80", "http://example.org:80"),
    ],
)
def test_the_address_of_the_page(capsys, url, page):
    assert page_url(url) == page
    announce(url)
    assert f"Page: {page} " in capsys.readouterr().err


def test_where_logs_are_json_the_address_is_a_line_of_json(capsys, monkeypatch):
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonLines())
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    monkeypatch.setattr(logging.getLogger(), "level", logging.INFO)
    logging.getLogger().manager._clear_cache()
    announce("http://0.0.0.0:81")
    line = json.loads(lines.getvalue())
    assert line["message"] == "izwi is ready"
    assert (line["page"], line["api"]) == ("http://127.0.0.1:81", "http://127.0.0.1:81/v1")
    assert not capsys.readouterr().err


def test_words_need_no_aligner_to_be_named(cli):
    cli("say", "hello", "--words", "w.json", "--model", "missing", code=2)
    assert cli.opened == ["missing", "izwi-tiny-aligner"]


@pytest.mark.parametrize(("mode", "out"), [("w", "-"), ("a", "speech.wav")])
def test_stdout_that_is_a_file_gets_the_audio_and_a_log_does_not(cli, monkeypatch, mode, out):
    """`izwi say hello > hi.wav` left hi.wav empty and wrote speech.wav."""
    with (cli.folder / "hi.wav").open(mode) as file:
        monkeypatch.setattr(sys, "stdout", file)
        assert str(choose_target(None, None, piped_text=False).out) == out


def test_a_player_plays_unless_a_format_is_asked_for(cli, monkeypatch):
    monkeypatch.setattr("izwi_api.cli.target.at_terminal", lambda: True)
    monkeypatch.setattr("izwi_api.cli.target.is_redirected", lambda: False)  # as pytest does
    monkeypatch.setattr("izwi_api.cli.target.find_player", lambda: "/bin/aplay")
    assert choose_target(None, None, piped_text=False).player == "/bin/aplay"
    target = choose_target(None, "mp3", piped_text=False)
    assert (target.player, str(target.out)) == (None, "speech.mp3")


def test_a_preview_without_a_player(cli, tone_wav):
    (cli.folder / "ref.wav").write_bytes(tone_wav(3.0))
    said = cli("clone", "ref.wav", "--name", "me", "--yes", "--x-vector-only").stderr
    assert "preview skipped" in said
    assert "--sample" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["say", "hi", "--ref-audio", "text.wav", "--x-vector-only"],
        ["clone", "text.wav", "--name", "x"],
    ],
)
def test_the_error_names_a_clip_that_is_not_audio(cli, arguments):
    (cli.folder / "text.wav").write_text("this is text " * 99)
    assert "text.wav: the file is not audio" in cli(*arguments, code=2).stderr


def test_a_folder_for_texts_that_is_a_file(cli, tone_wav):
    (cli.folder / "a.wav").write_bytes(tone_wav(1.0))
    said = cli("transcribe", "a.wav", "--out-dir", "a.wav", code=2).stderr
    assert "--out-dir a.wav: this is a file" in said
    assert not cli.opened
