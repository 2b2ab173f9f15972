"""Without --server, a command uses a server on this machine, or this process."""

from __future__ import annotations

import http.server
import json
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager

import pytest

from izwi.model.capability import Capability
from izwi_api.cli import running_server as module
from izwi_api.cli.running_server import running_server
from izwi_api.serve.app import create_app
from izwi_api.settings import Access, Settings
from izwi_api.usage.keys import digest_of
from tests.api.conftest import listening


@pytest.fixture
def default(server, monkeypatch):
    """The server of the tests, as if it ran where `izwi serve` listens."""
    monkeypatch.setattr(module, "DEFAULT_URL", server.url)
    monkeypatch.delenv("IZWI_SERVER")
    return server


@contextmanager
def stranger(answers):
    """Another program on that port; records requests and the key that was sent."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers.get("authorization")))
            answer = answers.get(self.path, (404, b""))
            # a list is used up
            status, body, *more = answer.pop(0) if isinstance(answer, list) else answer
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            for name, value in more[0].items() if more else ():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as there:
        thread = threading.Thread(target=there.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{there.server_port}", asked
        finally:
            there.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("serves", "asked"),
    [
        ({}, True),
        ({Capability.SPEAK: None}, True),
        ({Capability.SPEAK: "tts", Capability.TRANSCRIBE: "org/asr"}, True),
        ({Capability.SPEAK: "Qwen/Qwen3-TTS"}, False),
        ({Capability.SPEAK: "org/asr"}, False),
        ({Capability.SPEAK: None, Capability.ALIGN: None}, False),
        ({Capability.CHAT: None}, False),
    ],
)
def test_a_server_that_serves_what_is_needed_is_asked(default, serves, asked):
    assert running_server(None, None, serves=serves) == (default.url if asked else None)


def test_named_server_is_used_without_probing(default):
    assert running_server("http://far:1", None, serves={Capability.CHAT: None}) == "http://far:1"
    assert running_server("http://far:1", None, local_only=True) == "http://far:1"
    assert running_server("none", None) is None
    assert running_server(None, None, local_only=True) is None


@pytest.mark.parametrize(
    "models",
    [
        b'{"object": "list", "data": [{"id": "m", "task": "speech", "owned_by": "somebody"}]}',
        b'{"data": []}',
        b'{"data": "speech"}',
        b"[]",
        b"<html>",
    ],
)
def test_a_port_of_another_program_is_not_used(monkeypatch, models):
    answers = {"/readyz": (200, b"{}"), "/v1/models": (200, models)}
    with stranger(answers) as (url, asked):
        monkeypatch.setattr(module, "DEFAULT_URL", url)
        assert running_server(None, "a key", serves={Capability.SPEAK: None}) is None
        assert asked == [("/readyz", None), ("/v1/models", None)]  # and gets no key


def test_a_key_is_not_sent_after_a_redirect(monkeypatch):
    with stranger({}) as (elsewhere, asked_elsewhere):
        moved = (302, b"", {"location": f"{elsewhere}/v1/models"})
        answers = {"/readyz": (200, b"{}"), "/v1/models": [(401, b""), moved]}
        with stranger(answers) as (url, asked):
            monkeypatch.setattr(module, "DEFAULT_URL", url)
            assert running_server(None, "a key") is None
            assert asked[-1] == ("/v1/models", "Bearer a key")
    assert asked_elsewhere == [("/v1/models", None)]


def test_a_server_that_is_not_ready_is_not_asked(monkeypatch):
    ours = json.dumps({"data": [{"id": "m", "task": "speech", "owned_by": "izwi"}]}).encode()
    answers = {"/readyz": (503, b"{}"), "/v1/models": (200, ours)}
    with stranger(answers) as (url, asked):
        monkeypatch.setattr(module, "DEFAULT_URL", url)
        assert running_server(None, None) is None
        answers["/readyz"] = (200, b"{}")
        assert running_server(None, None) == url
        assert len(asked) == 3


def test_a_silent_or_closed_port_is_not_taken_for_a_server(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        monkeypatch.setattr(module, "DEFAULT_URL", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        assert running_server(None, None) is None
    assert running_server(None, None) is None  # nobody listens now


def test_a_server_with_a_key_is_used_with_that_key_only(monkeypatch, tmp_path, fake_world):
    engine, registry, named = fake_world()
    registry.models = named
    settings = Settings(home=tmp_path, access=Access(digest_of("the key")))
    with listening(create_app(engine, registry, settings)) as port:
        url = f"http://127.0.0.1:{port}"
        monkeypatch.setattr(module, "DEFAULT_URL", url)
        assert running_server(None, None) is None
        assert running_server(None, "another") is None
        assert running_server(None, "the key") == url


@pytest.mark.parametrize(
    "options",
    [
        ("--server", "none"),
        ("--device", "cpu"),
        ("--model", "izwi-tiny-tts"),  # which is not served there
    ],
)
def test_say_asks_the_server_unless_only_this_process_can(cli, default, options):
    there = default.registry.speech("tts").asked
    before = len(there)
    cli("say", "hello", "--out", "there.wav")
    assert (len(there) - before, len(cli.speech.asked)) == (1, 0)
    cli("say", "hello", "--out", "here.wav", *options)
    assert (len(there) - before, len(cli.speech.asked)) == (1, 1)


def test_transcribe_asks_the_server_but_for_files_that_it_would_refuse(
    cli, default, tone_wav, monkeypatch
):
    (cli.folder / "a.wav").write_bytes(tone_wav(2.0))
    opened = cli.opened

    def heard_here(*arguments):
        del opened[:]
        assert cli("transcribe", "a.wav", *arguments).stdout == "word word\n"
        return opened == ["izwi-tiny-asr"]

    assert not heard_here()
    assert heard_here("--server", "none")
    monkeypatch.setenv("IZWI_MAX_UPLOAD_MB", "0.01")
    assert heard_here()


def test_bench_measures_the_server(cli, default):
    report = json.loads(cli("bench", "--rounds", "1", "--streams", "2", "--json").stdout)
    assert report["server"] == default.url
    speech, transcription = report["models"]
    assert (speech["model"], speech["streams"]) == ("tts", 2)
    assert min(speech["first_audio_ms"], speech["rtf"], speech["throughput"]) > 0
    assert transcription["model"] == "org/asr"
    assert transcription["audio_s"] > 1
    assert not cli.opened
    one = ("--rounds", "1", "--streams", "1", "--json", "--server", default.url)
    (row,) = json.loads(cli("bench", *one, "--model", "org/asr").stdout)["models"]
    assert row["model"] == "org/asr"
    assert "no model 'none'" in cli("bench", *one, "--model", "none", code=2).stderr
    here = json.loads(cli("bench", *one[:-2], "--server", "none").stdout)
    assert "server" not in here
    assert cli.opened


def test_models_and_doctor_say_what_runs(cli, default, monkeypatch):
    assert cli("models").stdout == "tts\tspeech\norg/asr\ttranscription\n"
    found = json.loads(cli("doctor", "--device", "cpu", "--json").stdout)["findings"][-1]
    assert (found["area"], found["name"], found["status"]) == ("server", default.url, "ok")
    monkeypatch.setattr(module, "DEFAULT_URL", "http://127.0.0.1:9")
    assert "izwi-tiny-tts" in cli("models").stdout
    found = json.loads(cli("doctor", "--device", "cpu", "--json").stdout)["findings"][-1]
    assert (found["name"], found["status"]) == ("http://127.0.0.1:9", "note")
    assert "no server runs" in cli("models", "load", "m", code=2).stderr


def test_commands_with_a_server_do_not_import_torch(server, tone_wav, tmp_path):
    """One process runs all commands: starting costs far more than what they do."""
    (tmp_path / "ref.wav").write_bytes(tone_wav(3.0))
    commands = (
        ("say", "hello", "--out", "a.wav"),
        ("transcribe", "ref.wav"),
        ("clone", "ref.wav", "--name", "Far", "--yes", "--quiet"),
        ("voices",),
        ("models",),
    )
    code = (
        "import sys; from izwi_api.cli.main import app\n"
        f"for arguments in {commands}:\n"
        f"    app([*arguments, '--server', {server.url!r}], standalone_mode=False)\n"
        "    print(arguments[0], 'torch' in sys.modules, file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    said = {line for line in done.stderr.splitlines() if line.endswith((" True", " False"))}
    assert said == {f"{arguments[0]} False" for arguments in commands}
    address = f"{server.url}/v1/audio/voices/Far"
    urllib.request.urlopen(urllib.request.Request(address, method="DELETE")).close()
