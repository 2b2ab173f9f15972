"""`izwi voices` and `izwi clone`: in this process and with a server."""

from __future__ import annotations

import json

import pytest

from izwi_api.settings import Settings
from izwi_api.voices.archive import VoiceArchive, pack_voice
from tests.api.conftest import listening


@pytest.fixture
def there(tmp_path, fake_world):
    """The options that name a server with a store of its own."""
    from izwi_api.serve.app import create_app

    engine, registry, named = fake_world()
    registry.models = named
    settings = Settings(home=tmp_path / "server", decode_workers=0)
    with listening(create_app(engine, registry, settings)) as port:
        yield ("--server", f"http://127.0.0.1:{port}")


def test_a_voice_is_shown_and_deleted(cli, tone_wav, tmp_path):
    (tmp_path / "work" / "ref.wav").write_bytes(tone_wav(1.0))
    cli("clone", "ref.wav", "--name", "My voice", "--yes", "--text", "la", "--quiet")
    shown = json.loads(cli("voices", "show", "My voice").stdout)
    stored = cli.voices.get("My voice")
    assert (shown["id"], shown["ref_text"]) == (stored.id, "la")
    assert shown["consent"] == "the speaker agreed"
    assert stored.sample() == tone_wav(1.0)
    assert "My voice\tcloned\n" in cli("voices").stdout
    assert cli("voices", "list").stdout == cli("voices").stdout
    assert '{"name": "My voice", "kind": "cloned"}\n' in cli("voices", "--json").stdout
    cli("voices", "delete", "My voice", code=2, input="n\n")
    cli("voices", "delete", stored.id, "--yes")
    assert cli.voices.names() == []
    for verb in ("show", "export"):
        assert "no voice" in cli("voices", verb, "My voice", code=2).stderr
    assert "no voice" in cli("voices", "delete", "My voice", "--yes", code=2).stderr
    assert "export" in cli("voices", "--help").stdout


def test_a_voice_travels_to_a_server_and_back(cli, there, tone_wav, tmp_path):
    clip = tone_wav(1.0)
    cli.voices.create("me", clip, "la", consent="yes")
    cli("voices", "export", "me")
    assert "exists already" in cli("voices", "export", "me", code=2).stderr
    cli("voices", "import", "me.voice.zip", "--name", "far", *there)
    assert "exists" in cli("voices", "import", "me.voice.zip", code=2).stderr
    assert "far\tcloned\n" in cli("voices", *there).stdout
    far = json.loads(cli("voices", "show", "far", *there).stdout)
    assert (far["ref_text"], far["consent"]) == ("la", "yes")
    carried = cli("voices", "export", "far", "--out", "-", *there).stdout_bytes
    cli("voices", "import", "-", input=carried)
    back = cli.voices.get("far")
    assert (back.sample(), back.text, back.consent) == (clip, "la", "yes")
    cli("voices", "delete", "far", "--yes", *there)
    assert "no voice" in cli("voices", "show", "far", *there, code=2).stderr
    assert "not a stored voice" in cli("voices", "export", "Ann", *there, code=2).stderr
    assert cli.voices.names() == ["far", "me"]


def test_files_that_are_no_voices(cli, tmp_path):
    folder = tmp_path / "work"
    (folder / "text.zip").write_bytes(b"no archive")
    (folder / "mute.zip").write_bytes(pack_voice(VoiceArchive("me", b"no audio")))
    assert "exported voice" in cli("voices", "import", "text.zip", code=2).stderr
    assert "audio" in cli("voices", "import", "mute.zip", code=2).stderr
    cli("voices", "import", "missing.zip", code=1)
    assert "UTF-8" in cli("voices", "show", "\udcff", code=2).stderr  # an argument of other bytes
    damaged = bytearray(pack_voice(VoiceArchive("me", b"no audio", consent="y")))
    damaged[8:10] = b"\x08\0"  # says that it is compressed
    damaged[damaged.find(b"PK\x01\x02") + 10] = 8
    (folder / "damaged.zip").write_bytes(damaged)
    assert "exported voice" in cli("voices", "import", "damaged.zip", code=2).stderr
    assert cli.voices.names() == []


def test_clone_with_a_consent_recording_does_not_prompt(cli, there, tone_wav, tmp_path):
    (tmp_path / "work" / "ref.wav").write_bytes(tone_wav(2.0))
    ask = ("clone", "ref.wav", "--name", "me", "--consent", "cons_1", "--quiet")
    cli(*ask)
    cli(*ask, *there)
    assert cli.voices.get("me").consent == "cons_1"
    assert json.loads(cli("voices", "show", "me", *there).stdout)["consent"] == "cons_1"
