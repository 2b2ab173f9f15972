"""Commands with many files, pipes, servers and clips, and `izwi doctor`."""

from __future__ import annotations

import io
import json
import os
import urllib.request
from functools import partial

import numpy as np
import pytest
import soundfile as sf
from rich.console import Console
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from izwi.errors import InvalidRequest
from izwi_api.cli import audio_out, doctor, transcribe
from izwi_api.cli.text_in import ArrivingText
from izwi_api.client import AsyncClient, RuntimeOptions
from izwi_api.serve import local_services
from izwi_api.voices.clip_check import clip_faults, measure_clip
from tests.api.conftest import FRAME, listening
from tests.models.tiny_tts import write_tiny_tts


@pytest.fixture
def recordings(cli, tone_wav):
    """A folder with three recordings of one to three words, a broken one, and other files."""
    folder = cli.folder / "in"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.wav").write_bytes(tone_wav(1.0))
    (folder / "b.WAV").write_bytes(tone_wav(2.0))
    (folder / "broken.wav").write_bytes(b"this is no audio " * 99)
    (folder / "z.wav").write_bytes(tone_wav(3.0))
    (folder / "notes.txt").write_text("no audio")
    (folder / ".hidden.wav").write_bytes(tone_wav(1.0))
    return folder


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# -- many files ----------------------------------------------------------------------------------
def test_a_broken_file_is_reported_and_the_others_are_written_in_order(cli, recordings):
    result = cli("transcribe", "in", code=1)
    assert result.stdout.splitlines() == [
        "in/b.WAV: word word",
        "in/deep/a.wav: word",
        "in/z.wav: word word word",
    ]
    (line,) = result.stderr.strip().splitlines()
    assert "in/broken.wav" in line
    assert "not audio" in line
    assert not cli.engine.live


def test_json_of_many_says_whose_it_is(cli, recordings):
    lines = cli("transcribe", "in", "--json", code=1).stdout.splitlines()
    fields = [json.loads(line) for line in lines]
    assert [one["file"] for one in fields] == ["in/b.WAV", "in/deep/a.wav", "in/z.wav"]
    assert all(one.keys() == {"file", "text", "language", "token_ids"} for one in fields)


def test_texts_go_into_a_folder_or_beside(cli, recordings):
    result = cli("transcribe", "in", "--out-dir", "out", "--format", "srt", code=1)
    assert result.stdout == ""
    assert files_in(cli.folder / "out") == ["b.srt", "deep/a.srt", "z.srt"]
    cue = "1\n00:00:00,000 --> 00:00:03,000\nword word word\n\n"
    assert (cli.folder / "out" / "z.srt").read_text() == cue
    cli("transcribe", "in/deep", "in/z.wav", "--beside", "--format", "vtt")
    assert (recordings / "deep" / "a.vtt").read_text().startswith("WEBVTT\n\n00:00:00.000 --> ")
    cli("transcribe", "in/z.wav", "--beside")
    assert (recordings / "z.txt").read_text() == "word word word\n"


def test_files_that_differ_in_their_suffix_do_not_share_a_transcript(cli, recordings, tone_wav):
    (recordings / "z.flac").write_bytes((recordings / "z.wav").read_bytes())
    cli("transcribe", "in/z.wav", "in/z.flac", "in/b.WAV", "--out-dir", "out")
    assert files_in(cli.folder / "out") == ["b.txt", "z.flac.txt", "z.wav.txt"]
    again = cli("transcribe", "in/z.wav", "in/z.wav", "--out-dir", "out", code=2)
    assert "2 files would be written" in again.stderr


def test_patterns_and_stdin(cli, recordings, tone_wav):
    listed = cli("transcribe", "in/**/[az].wav").stdout
    assert listed == "in/deep/a.wav: word\nin/z.wav: word word word\n"
    assert cli("transcribe", "-", input=tone_wav(2.0)).stdout == "word word\n"
    srt = cli("transcribe", "-", "--format", "srt", input=tone_wav(1.0)).stdout
    assert srt == "1\n00:00:00,000 --> 00:00:01,000\nword\n\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["in/none*.wav"], "no file matches"),
        (["empty"], "has no audio file"),
        (["-", "-"], "once"),
        (["in", "--format", "srt"], "--out-dir"),
        (["in", "--format", "srt", "--json"], "use either --json or --format, not both"),
        (["in", "--out-dir", "x", "--beside"], "use either --out-dir or --beside, not both"),
        (["-", "--beside"], "no folder beside stdin"),
        (["in/broken.wav"], "in/broken.wav"),
        (["in", "--server", "file:///etc/passwd"], "address"),
    ],
)
def test_what_cannot_be_asked_is_code_2(cli, recordings, arguments, message):
    (cli.folder / "empty").mkdir()
    result = cli("transcribe", *arguments, code=2)
    assert message in result.stderr
    assert not result.stdout


def test_several_files_run_at_a_time_and_no_more(cli, tone_wav):
    for index in range(12):
        (cli.folder / f"{index:02}.wav").write_bytes(tone_wav(1.0))
    cli.engine.step_s = 0.005
    seen = []
    submit_all = cli.engine.submit_all

    def counting(requests):
        streams = submit_all(requests)
        seen.append(len(cli.engine.live))
        return streams

    cli.engine.submit_all = counting
    lines = cli("transcribe", ".", "--jobs", "3").stdout.splitlines()
    assert [line.split(".")[0] for line in lines] == [f"{index:02}" for index in range(12)]
    assert max(seen) == 3


async def test_progress_of_a_long_file_is_reported(cli, tone_wav):
    async with AsyncClient(models=["izwi-tiny-asr"]) as client:
        shares, transcript = await progress_of(client, tone_wav(85.0))
    assert shares == [pytest.approx(min(85, 10 * n) / 85) for n in range(1, 10)]
    assert transcript.text.split() == ["word"] * 85


async def progress_of(client, audio):
    """The shares of a recording that are transcribed so far, each once, and the transcript."""
    shares = []
    async with client.stream_transcription(audio) as stream:
        async for update in stream:
            if update.share > (shares[-1] if shares else 0):
                shares.append(update.share)
    return shares, stream.result


@pytest.mark.parametrize(("names", "shown"), [(["z.wav"], "100%"), (["b.WAV", "z.wav"], "2/2")])
def test_a_terminal_shows_how_far_it_is(cli, recordings, monkeypatch, names, shown):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(transcribe, "messages", lambda: console)
    cli("transcribe", *(f"in/{name}" for name in names))
    assert "transcribing" in screen.getvalue()
    assert shown in screen.getvalue()


def test_the_limit_of_a_files_length_applies_to_the_command_too(cli, recordings, monkeypatch):
    monkeypatch.setenv("IZWI_MAX_AUDIO_S", "2")
    assert "longer than 2 s" in cli("transcribe", "in/z.wav", code=2).stderr
    assert cli("transcribe", "in/b.WAV").stdout == "word word\n"


def test_a_checkpoint_that_is_missing_ends_it_once(cli, recordings, monkeypatch):
    def open_services(sources, where):
        raise InvalidRequest(f"no checkpoint {sources[0]!r}")

    monkeypatch.setattr(local_services, "open_services", open_services)
    result = cli("transcribe", "in/b.WAV", "in/z.wav", "--model", "none", code=2)
    assert result.stderr.count("no checkpoint") == 1


# -- pipes ---------------------------------------------------------------------------------------
def test_stdout_has_the_audio_and_nothing_else(cli):
    result = cli("say", "hello", "--out", "-")
    samples, rate = sf.read(io.BytesIO(result.stdout_bytes))
    assert (len(samples), rate) == (5 * 1920, 24_000)
    assert "0.40 s" in result.stderr
    pcm = cli("say", "-", "--out", "-", "--format", "pcm", input="hello").stdout_bytes
    assert pcm == result.stdout_bytes[44:]
    assert files_in(cli.folder) == []
    assert "--format" in cli("say", "hello", "--format", "doc", code=2).stderr


def test_text_that_is_not_utf8_or_blank(cli):
    assert "UTF-8" in cli("say", "-", input=b"hello \xff", code=2).stderr
    assert "no text" in cli("say", "-", input=b" \n ", code=2).stderr


@pytest.fixture(scope="module")
def tiny_voice(tmp_path_factory):
    return str(write_tiny_tts(tmp_path_factory.mktemp("cli") / "voice", "custom_voice"))


async def spoken(tiny_voice, write, close_after):
    """Speak text from a pipe, which is closed after this many frames were played."""
    reading, writing = os.pipe()
    os.write(writing, write[0])
    runtime = RuntimeOptions(device="cpu", dtype="float32")
    try:
        async with AsyncClient(models=[tiny_voice], runtime=runtime) as client:
            text = ArrivingText(partial(os.read, reading)).pieces()
            options = {"voice": "ryan", "seed": 7, "max_new_tokens": 16}
            samples = []
            is_open = True
            async with client.stream_speech(text, **options) as stream:
                async for audio in stream:
                    samples += audio.samples.tolist()
                    if is_open and len(samples) >= close_after * FRAME:
                        os.write(writing, write[1])
                        os.close(writing)
                        is_open = False
        return samples
    finally:
        os.close(reading)


async def test_text_is_said_while_it_is_written(tiny_voice, monkeypatch, tmp_path):
    monkeypatch.setenv("IZWI_HOME", str(tmp_path))
    text = "One, two, three. Then some more wörds came.".encode()
    cut = text.index(b"\xc3") + 1  # inside a character
    # One frame is heard while the text is not complete: were it waited for, this would hang.
    piecewise = await spoken(tiny_voice, (text[:cut], text[cut:]), close_after=1)
    assert len(piecewise) > 4 * FRAME
    assert piecewise == await spoken(tiny_voice, (text[:20], text[20:]), close_after=1)


async def test_a_truncated_text_is_the_reported_cause(tiny_voice, monkeypatch, tmp_path):
    monkeypatch.setenv("IZWI_HOME", str(tmp_path))
    with pytest.raises(InvalidRequest, match="UTF-8"):
        await spoken(tiny_voice, (b"One, two, three. ", b"four \xff five"), close_after=1)


# -- a running server ----------------------------------------------------------------------------
def test_a_server_says_it(cli, server, monkeypatch):
    cli("say", "hello", "--out", "here.wav")
    monkeypatch.setenv("IZWI_SERVER", server.url)
    cli("say", "hello", "--out", "there.wav")
    assert (cli.folder / "there.wav").read_bytes() == (cli.folder / "here.wav").read_bytes()
    cli("say", "-", "--out", "bob.wav", "--voice", "bob", "--seed", "3", input="hello")
    ask = server.registry.speech("tts").asked[-1]
    assert (ask.text, ask.voice, ask.seed) == ("hello", "Bob", 3)
    assert len(cli.speech.asked) == 1  # nothing but the first was made here


def test_a_server_sends_codes_as_this_process_does(cli, server):
    options = ("--seed", "5", "--max-new-tokens", "4", "--out", "a.wav")
    for place in ("none", server.url):
        cli("say", "hello", "--save-codes", f"{place[:4]}.npy", "--server", place, *options)
    here, there = (np.load(cli.folder / f"{name}.npy") for name in ("none", "http"))
    assert (here.shape, here.dtype) == ((4, 4), np.int64)
    assert np.array_equal(here, there)


def test_a_clip_goes_to_the_server(cli, server, tone_wav):
    (cli.folder / "ref.wav").write_bytes(tone_wav(1.0))
    cli("say", "hello", "--server", server.url, "--ref-audio", "ref.wav", "--ref-text", "la")
    ask = server.registry.speech("tts").asked[-1]
    assert (ask.voice.text, len(ask.voice.samples)) == ("la", 24_000)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["hi", "--voice", "nobody"], 2, "nobody"),
        (["hi", "--model", "none"], 2, "no model 'none' is served here"),
        (["hello\x01"], 1, "closed the connection before"),
        (["hi", "--server", "http://127.0.0.1:9"], 1, "no server responds"),
        (["hi", "--server", "127.0.0.1:8000"], 2, "address"),
    ],
)
def test_what_a_server_cannot_do_leaves_no_file(cli, server, arguments, code, message):
    result = cli(*("say", "--out", "a.wav", "--server", server.url), *arguments, code=code)
    assert message in result.stderr
    assert result.stderr.strip().count("\n") == 0
    assert files_in(cli.folder) == []


def test_a_server_transcribes_as_this_process_does(cli, server, recordings):
    here = cli("transcribe", "in", "--json", code=1)
    there = cli("transcribe", "in", "--json", "--server", f"{server.url}/v1", code=1)
    assert there.stdout == here.stdout
    assert "in/broken.wav" in there.stderr
    srt = [cli("transcribe", "in/z.wav", "--format", "srt", *more).stdout
           for more in ([], ["--server", server.url])]  # fmt: skip
    assert srt[0] == srt[1]
    assert (
        "no server responds"
        in cli("transcribe", "in", "--server", "http://127.0.0.1:9", code=1).stderr
    )


async def test_a_server_tells_how_far_it_is(server, tone_wav):
    async with AsyncClient(server.url) as client:
        shares, transcript = await progress_of(client, tone_wav(40.0))
    assert shares == [0.25, 0.5, 0.75, 1.0]
    assert [segment.end_s for segment in transcript.segments] == [10, 20, 30, 40]


async def test_a_server_that_knows_no_events_answers_in_one_piece(tone_wav):
    segment = {"start": 0.0, "end": 1.0, "text": "hi", "tokens": [1]}
    answer = {"language": "english", "text": "hi", "segments": [segment]}
    whole = Starlette(routes=[Route("/{path:path}", _whole(answer), methods=["POST"])])
    with listening(whole) as port:
        async with AsyncClient(f"http://127.0.0.1:{port}") as client:
            transcript = await client.transcribe(tone_wav(1.0), model="m")
    assert (transcript.text, transcript.language, transcript.token_ids) == ("hi", "English", [1])


def _whole(answer):
    async def respond(_):
        return JSONResponse(answer)

    return respond


@pytest.fixture
def forgotten(server):
    """All tests share the server's voices: a test removes those that it adds."""
    yield
    urllib.request.urlopen(
        urllib.request.Request(f"{server.url}/v1/audio/voices/far", method="DELETE")
    ).close()


def test_a_server_clones_and_lists(cli, server, tone_wav, forgotten):
    (cli.folder / "ref.wav").write_bytes(tone_wav(3.0))
    there = ("--server", server.url)
    said = cli("clone", "ref.wav", "--name", "far", "--yes", "--sample", "s.wav", *there).stderr
    assert "far is ready; it says: word word word" in said
    assert sf.info(cli.folder / "s.wav").duration > 1
    assert "far\tcloned\n" in cli("voices", *there).stdout
    assert (
        '{"name": "alloy", "kind": "alias", "speaker": "Bob"}'
        in cli("voices", "--json", *there).stdout.splitlines()
    )
    assert cli("models", *there).stdout == "tts\tspeech\norg/asr\ttranscription\n"


# -- clips ---------------------------------------------------------------------------------------
RATE = 24_000


def clip(seconds=6.0, level=0.2, noise=0.0, gain=1.0):
    """Syllables of a buzz with pauses between, as loud as asked, cut at full scale."""
    at = np.arange(int(seconds * RATE)) / RATE
    voice = sum(np.sin(2 * np.pi * 130 * k * at) / k for k in (1, 2, 3))
    voice *= level * (np.sin(2 * np.pi * 1.1 * at) > -0.4)
    voice += noise * np.random.default_rng(0).standard_normal(len(at))
    return np.clip(gain * voice, -1, 1).astype(np.float32)


@pytest.mark.parametrize(
    ("samples", "faults"),
    [
        (clip(), []),
        (clip(noise=0.003), []),
        (clip(seconds=2.0), ["length"]),
        (clip(seconds=45.0), ["length"]),
        (clip(level=0.005), ["level"]),
        (clip(gain=9.0), ["level", "clipping"]),
        (clip(level=0.05, gain=1.0, noise=0.02), ["noise"]),
        (0.5 * clip(level=0.2, gain=9.0), ["clipping"]),
        (np.zeros(RATE, np.float32), ["length", "level"]),
        (np.zeros(3, np.float32), ["length", "level"]),
        (np.full(3 * RATE, 0.5, np.float32), ["length", "level"]),
    ],
)
def test_faults_of_a_clip(samples, faults):
    figures = measure_clip(samples, RATE)
    assert [fault.name for fault in clip_faults(figures)] == faults, figures


def test_figures_of_a_clip():
    figures = measure_clip(clip(level=0.2, noise=0.002), RATE)
    assert figures.duration_s == pytest.approx(6.0)
    at = np.arange(6 * RATE) / RATE
    voiced_s = 6.0 * (np.sin(2 * np.pi * 1.1 * at) > -0.4).mean()
    assert figures.speech_s == pytest.approx(voiced_s, abs=0.2)  # frames are 20 ms
    rms = 0.2 * np.sqrt((1 + 1 / 4 + 1 / 9) / 2)
    assert figures.level_dbfs == pytest.approx(20 * np.log10(rms), abs=0.5)
    assert figures.snr_db == pytest.approx(20 * np.log10(rms / 0.002), abs=1.5)
    assert figures.clipped_share == 0


def test_clone_tells_faults_before_it_asks_and_says_a_sentence(cli):
    sf.write(cli.folder / "good.wav", clip(), RATE)
    sf.write(cli.folder / "bad.wav", clip(seconds=1.0, gain=9.0), RATE)
    asked = cli("clone", "bad.wav", "--name", "bad", code=2, input="n\n").stderr
    assert asked.index("clipping") < asked.index("agree")
    assert cli.voices.names() == []
    said = cli("clone", "good.wav", "--name", "good", "--yes", "--text", "la").stderr
    assert "clip's" not in said
    assert cli.speech.asked[-1].voice.text == "la"
    assert "preview skipped" in said
    assert files_in(cli.folder) == ["bad.wav", "good.wav"]
    count = len(cli.speech.asked)
    cli("clone", "good.wav", "--name", "mute", "--yes", "--text", "la", "--quiet")
    assert len(cli.speech.asked) == count
    assert cli.voices.names() == ["good", "mute"]


def test_clone_plays_a_preview_on_a_terminal(cli, monkeypatch, tmp_path):
    transcript = tmp_path / "heard.wav"
    player = tmp_path / "aplay"
    player.write_text(f"#!/bin/sh\ncat > {transcript}\n")
    player.chmod(0o755)
    monkeypatch.setattr(audio_out, "find_player", lambda: str(player))
    monkeypatch.setattr("izwi_api.cli.clone._is_heard", lambda: True)
    sf.write(cli.folder / "good.wav", clip(), RATE)
    cli("clone", "good.wav", "--name", "good", "--yes", "--x-vector-only")
    assert transcript.stat().st_size > 24_000


# -- the machine ---------------------------------------------------------------------------------
def test_doctor_finds_this_machine_well(cli, monkeypatch):
    monkeypatch.setenv("IZWI_HOME", str(cli.folder / "not" / "made"))
    report = json.loads(cli("doctor", "--json", "--device", "cpu").stdout)
    found = {(one["area"], one["name"]): one for one in report["findings"]}
    assert report["ok"] is True
    assert found["packages", "torch"]["status"] == "ok"
    assert "loads, does speech" in found["checkpoints", "izwi-tiny-tts"]["detail"]
    assert "GiB for keys and values" in found["device", "used"]["detail"]
    assert ("packages", "ruff") not in found  # only what serving needs
    assert files_in(cli.folder) == []
    assert not (cli.folder / "not").exists()


def test_doctor_queries_the_given_server(cli, server):
    found = cli("doctor", "--device", "cpu", "--server", server.url).stdout.splitlines()[-1]
    assert found.endswith("serves tts, org/asr")
    broken = cli("doctor", "--device", "cpu", "--server", "http://127.0.0.1:9", code=1).stdout
    assert "no server responds" in broken.splitlines()[-1]


def test_warm_loads_models_and_counts_the_kernels_that_are_kept(cli, monkeypatch, tmp_path):
    triton = pytest.importorskip("triton")
    kernels = tmp_path / "kernels"
    monkeypatch.setattr(triton.knobs.cache, "dir", str(kernels))
    open_services = local_services.open_services

    def compiling(sources, where):
        for number in range(3):
            (kernels / f"{number}").mkdir(parents=True, exist_ok=True)
            (kernels / f"{number}" / "kernel.cubin").touch()
            (kernels / f"{number}" / "kernel.json").touch()
        return open_services(sources, where)

    (kernels / "earlier").mkdir(parents=True)
    (kernels / "earlier" / "kernel.cubin").touch()
    monkeypatch.setattr(local_services, "open_services", compiling)
    reported = cli("warm", "izwi-tiny-tts", "--device", "cpu").stdout
    assert f"3 kernels compiled, 4 kept in {kernels}" in reported
    assert cli.opened == ["izwi-tiny-tts"]
    assert [f.detail for f in doctor._kernels()] == [f"4 compiled in {kernels}"]
    monkeypatch.setattr(local_services, "open_services", open_services)
    assert "missing" in cli("warm", "missing", code=2).output


def test_doctor_says_what_is_broken(cli, monkeypatch):
    (cli.folder / "file").write_text("a file is no home")
    monkeypatch.setenv("IZWI_HOME", str(cli.folder / "file" / "home"))
    monkeypatch.setattr("izwi.checkpoints.registry.embedded", dict)
    result = cli("doctor", "--device", "cuda:99", code=1)
    failed = [line for line in result.stdout.splitlines() if "failed" in line.split()[0]]
    assert len(failed) == 2, result.stdout
    assert "cuda:99" in failed[0]
    assert "home" in failed[1]
    monkeypatch.delenv("IZWI_HOME")
    report = json.loads(cli("doctor", "--json", "--device", "cpu", code=1).stdout)
    missing = [one["name"] for one in report["findings"] if one["status"] == "failed"]
    assert missing == ["izwi-tiny-tts", "izwi-tiny-asr", "izwi-tiny-aligner", "izwi-tiny-chat"]


@pytest.mark.slow  # test_running_server.py measures a server
def test_bench_times_every_model(cli):
    cli.engine.step_s = 0.005  # compared with which passing the audio on takes no time
    report = json.loads(cli("bench", "--rounds", "2", "--streams", "3", "--json").stdout)
    speech, transcription = report["models"]
    assert report["rounds"] == 2
    assert (speech["model"], speech["task"], speech["streams"]) == ("izwi-tiny-tts", "speech", 3)
    assert speech["first_audio_ms"] > 0
    assert 0 < speech["rtf"] < 1
    assert speech["throughput"] > 1 / speech["rtf"]  # three streams of a fake that only waits
    assert transcription["task"] == "transcription"
    # the fake says a frame a character
    assert transcription["audio_s"] == pytest.approx(47 * 4 * 0.08, rel=0.1)
    assert transcription["rtf"] > 0
    shown = cli("bench", "--rounds", "1", "--streams", "1", "--model", "izwi-tiny-asr").stdout
    assert shown.startswith("izwi-tiny-asr: transcription")
    assert shown.count("\n") == 1


def test_shells_can_complete(cli):
    assert "--install-completion" in cli("--help").stdout


# -- how a text is spoken --------------------------------------------------------------------------
def test_words_are_pronounced_as_they_are_spelled(cli):
    say = ("say", "Izwi and [pause:1s] York.", "--voice", "Ann", "--out", "a.wav")
    cli(*say, "--pronounce", "izwi=ee-zwee", "--pronounce", "York=Yawk")
    asked = [ask.text.strip() for ask in cli.speech.asked[-2:]]
    assert asked == ["ee-zwee and", "Yawk."]
    assert "takes WORD=SPELLING, got 'izwi'" in cli(*say, "--pronounce", "izwi", code=2).stderr


def test_instructions_without_effect_are_reported(cli):
    say = ("say", "hi", "--voice", "Ann", "--out", "a.wav")
    assert "does not follow instructions" in cli(*say, "--instruct", "Sing.").stderr
    assert "does not follow instructions" not in cli(*say).stderr
