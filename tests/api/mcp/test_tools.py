"""The tools for assistants, without the protocol; tests/clients has the official SDK."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from izwi.audio.decode import decode_audio
from izwi.errors import InvalidRequest, QuotaExceeded
from izwi_api.cli.main import app
from izwi_api.cli.mcp import check_address
from izwi_api.client import AsyncClient
from izwi_api.mcp.tools import SpeechTools
from izwi_api.serve.app import create_app
from izwi_api.settings import Access, Settings
from izwi_api.usage.keys import add_key
from izwi_api.usage.limits import KeyLimits
from tests.api.conftest import FakeEngine, FakeRegistry, FakeSpeech, FakeTranscription, listening


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    file = home / "keys.toml"
    poor = KeyLimits(characters_per_day=3)
    keys = {"free": add_key(file, "free", KeyLimits()), "poor": add_key(file, "poor", poor)}
    registry = FakeRegistry(tts=FakeSpeech(), asr=FakeTranscription())
    settings = Settings(home=home, access=Access(api_keys_file=file))
    with listening(create_app(FakeEngine(), registry, settings)) as port:
        yield f"http://127.0.0.1:{port}", keys


@pytest.fixture
async def tools(world, tmp_path):
    url, keys = world
    async with AsyncClient(url, api_key=keys["free"]) as client:
        yield SpeechTools(client, tmp_path / "speech")


async def test_a_text_is_written_to_a_file_and_a_file_transcribed(tools, tone_wav):
    said = await tools.say("Hello there.", "a/hello.wav", voice="Bob")
    path = tools.folder / "a" / "hello.wav"
    assert said == f"{path} (1.0 s)"
    assert len(decode_audio(path.read_bytes(), 24_000)) == 12 * 1920
    (tools.folder / "tone.wav").write_bytes(tone_wav(2.0))
    assert await tools.transcribe("tone.wav", language="en") == "word word"
    with pytest.raises(InvalidRequest, match="exists already"):
        await tools.say("Hello there.", "a/hello.wav")


async def test_a_clip_becomes_a_voice(tools, tone_wav):
    tools.folder.mkdir()
    (tools.folder / "clip.wav").write_bytes(tone_wav(2.0))
    assert "mine" in await tools.clone("mine", "clip.wav", "She said yes.")
    assert {"Ann", "Bob", "mine"} <= set(await tools.list_voices())
    with pytest.raises(InvalidRequest, match="consent"):
        await tools.clone("other", "clip.wav", " ")


@pytest.mark.parametrize("file", ["../a.wav", "/etc/passwd", "a/../../b.wav", ".", "link/a.wav"])
async def test_files_are_those_of_the_folder(tools, tmp_path, file):
    tools.folder.mkdir()
    (tools.folder / "link").symlink_to(tmp_path)
    (tmp_path / "a.wav").write_bytes(b"")
    for work in (tools.say("Hi", file), tools.transcribe(file), tools.clone("a", file, "yes")):
        with pytest.raises(InvalidRequest, match="not in the speech folder"):
            await work
    assert not (tmp_path / "b.wav").exists()


async def test_what_is_wrong_is_said(tools):
    with pytest.raises(InvalidRequest, match="no file"):
        await tools.transcribe("nothing.wav")
    with pytest.raises(InvalidRequest, match="suffix"):
        await tools.say("Hi", "hi.txt")


async def test_quotas_are_those_of_the_key(world, tmp_path):
    url, keys = world
    async with AsyncClient(url, api_key=keys["poor"]) as client:
        with pytest.raises(QuotaExceeded):
            await SpeechTools(client, tmp_path).say("Hello", "hello.wav")
    assert not (tmp_path / "hello.wav").exists()


def test_other_machines_are_not_served():
    check_address("localhost")
    check_address("::1")
    with pytest.raises(InvalidRequest, match="no keys"):
        check_address("0.0.0.0")


def test_the_command_names_the_package_that_it_needs(monkeypatch):
    monkeypatch.setattr("izwi_api.cli.mcp.find_spec", lambda _: None)
    result = CliRunner().invoke(app, ["mcp", "--server", "none"])
    assert result.exit_code != 0
    assert "izwi[mcp]" in " ".join(result.output.split())
