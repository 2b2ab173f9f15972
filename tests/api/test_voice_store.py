"""Cloned voices on disk: whole or not at all, whoever asks at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from izwi.errors import InvalidRequest, VoiceExists, VoiceNotFound
from izwi.request import VoicePrompt
from izwi_api.settings import read_settings
from izwi_api.voice_store import VoiceStore

CLIP = (np.sin(np.arange(2400) / 9) * 0.5).astype(np.float32)


def test_a_voice_comes_back_as_it_was(tmp_path):
    store = VoiceStore(tmp_path / "voices")
    assert store.names() == []
    made = store.create("Zoë".encode("ascii", "ignore").decode(), CLIP, "ünd")
    assert store.names() == ["Zo"]
    assert store.get("Zo") == made
    np.testing.assert_allclose(made.reference(), CLIP, atol=1e-4)
    assert store.load_prompt(made, "org/model") is None
    prompt = VoicePrompt(np.arange(4, dtype=np.float32), np.ones((2, 16), np.int64), "ünd")
    store.save_prompt(made, "org/model", prompt)
    kept = store.load_prompt(made, "org/model")
    np.testing.assert_array_equal(kept.codes, prompt.codes)
    np.testing.assert_array_equal(kept.speaker_embedding, prompt.speaker_embedding)
    assert kept.text == "ünd"
    assert store.load_prompt(made, "another") is None
    store.delete("Zo")
    with pytest.raises(VoiceNotFound):
        store.get("Zo")


def test_of_twenty_at_once_exactly_one_wins(tmp_path):
    def create(index):
        try:
            return VoiceStore(tmp_path).create("same", CLIP * index / 20, str(index)).text
        except VoiceExists:
            return None

    with ThreadPoolExecutor(20) as pool:
        winners = [text for text in pool.map(create, range(20)) if text]
    assert winners == [VoiceStore(tmp_path).get("same").text]
    assert [path.name for path in tmp_path.iterdir()] == ["same"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "_a", "a\n", "a" * 65, "é"])
def test_names_against_the_rule(tmp_path, name):
    store = VoiceStore(tmp_path)
    with pytest.raises(InvalidRequest):
        store.create(name, CLIP, None)
    with pytest.raises(VoiceNotFound):
        store.get(name)
    with pytest.raises(VoiceNotFound):
        store.delete(name)


def test_leftovers_and_damage_are_no_voices(tmp_path):
    store = VoiceStore(tmp_path)
    (tmp_path / ".new-x").mkdir()
    (tmp_path / "half").mkdir()
    assert store.names() == []
    made = store.create("v", CLIP, None)
    (made.folder / "prompts" / "m.npz").write_bytes(b"damaged")
    assert store.load_prompt(made, "m") is None
    (made.folder / "voice.json").write_text("{")
    with pytest.raises(VoiceNotFound):
        store.get("v")


def test_settings_from_the_environment(tmp_path):
    settings = read_settings(
        {
            "IZWI_HOME": str(tmp_path),
            "IZWI_MAX_UPLOAD_MB": "2",
            "IZWI_VOICE_ALIASES": "Alloy=Ann, echo = Bob",
        }
    )
    assert settings.home == tmp_path
    assert settings.max_upload_bytes == 2 << 20
    assert settings.voice_aliases == {"alloy": "Ann", "echo": "Bob"}
    for bad in ({"IZWI_MAX_UPLOAD_MB": "-1"}, {"IZWI_MAX_AUDIO_S": "x"}):
        with pytest.raises(InvalidRequest, match="IZWI_MAX"):
            read_settings(bad)
    with pytest.raises(InvalidRequest, match="alloy"):
        read_settings({"IZWI_VOICE_ALIASES": "alloy"})
