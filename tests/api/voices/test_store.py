"""Stored voices on disk: whole or not at all, with concurrent callers and killed processes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from io import BytesIO

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from izwi.audio.decode import decode_audio
from izwi.audio.encode import wav_header
from izwi.audio.pcm import to_s16le
from izwi.errors import (
    ConsentNotFound,
    InvalidRequest,
    IzwiError,
    StorageFull,
    TooLarge,
    VoiceExists,
    VoiceNotFound,
)
from izwi.inputs.speech import VoicePrompt
from izwi_api.environment import read_settings
from izwi_api.voices import files as voice_files
from izwi_api.voices import index
from izwi_api.voices.archive import VoiceArchive, pack_voice, unpack_voice
from izwi_api.voices.files import audio_kind, is_id, new_id
from izwi_api.voices.index import INDEX_NAME
from izwi_api.voices.store import VoiceStore

TONE = (np.sin(np.arange(2400) / 9) * 0.5).astype(np.float32)
PCM = to_s16le(TONE)
CLIP = wav_header(24_000, len(PCM)) + PCM
PROMPT = VoicePrompt(np.arange(4, dtype=np.float32), np.ones((2, 16), np.int64), "ünd")


def folders(root):
    return sorted(path.name for path in root.iterdir() if path.is_dir())


def samples_of(voice):
    return decode_audio(voice.sample(), 24_000)


def check_whole(root):
    """A new process finds complete voices only."""
    store = VoiceStore(root)
    voices = store.voices()
    for voice in voices:
        assert store.get(voice.id) == store.get(voice.name) == voice
        assert voice.sample() == CLIP
        assert len(samples_of(voice)) == len(TONE)
    shown = [name for name in folders(root) if not name.startswith(".")]
    assert shown == sorted(voice.id for voice in voices)
    with closing(sqlite3.connect(root / INDEX_NAME)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return voices


def test_a_voice_comes_back_as_it_was(tmp_path):
    store = VoiceStore(tmp_path / "voices")
    assert store.names() == []
    assert not (tmp_path / "voices").exists()
    made = store.create("Zoë Müller", CLIP, "ünd", consent="yes", encoded={"org/model": PROMPT})
    assert is_id(made.id)
    assert store.names() == ["Zoë Müller"]
    other = VoiceStore(tmp_path / "voices")
    assert other.get("Zoe\u0308 Müller") == made == other.get(made.id)
    assert (made.sample(), made.media_type, made.consent) == (CLIP, "audio/wav", "yes")
    np.testing.assert_allclose(samples_of(made), TONE, atol=1e-4)
    for reader in (store, other):
        kept = reader.load_prompt(made, "org/model")
        np.testing.assert_array_equal(kept.codes, PROMPT.codes)
        np.testing.assert_array_equal(kept.speaker_embedding, PROMPT.speaker_embedding)
        assert kept.text == "ünd"
        assert reader.load_prompt(made, "another") is None
    store.delete("Zoë Müller")
    for gone in (made.id, made.name):
        with pytest.raises(VoiceNotFound):
            other.get(gone)
    with pytest.raises(VoiceNotFound):
        made.sample()
    assert folders(tmp_path / "voices") == []


def test_a_prompt_is_kept_in_memory_and_on_disk(tmp_path):
    store = VoiceStore(tmp_path)
    made = store.create("v", CLIP, None)
    long_name = "folder/" * 60  # longer than a file's name may be
    for checkpoint in ("m", long_name):
        store.save_prompt(made, checkpoint, VoicePrompt(PROMPT.speaker_embedding))
        assert store.load_prompt(made, checkpoint) is store.load_prompt(made, checkpoint)
        assert VoiceStore(tmp_path).load_prompt(made, checkpoint).codes is None
    (path,) = (made.folder / "prompts").glob("m.npz")
    path.write_bytes(path.read_bytes()[:99])
    assert VoiceStore(tmp_path).load_prompt(made, "m") is None
    np.savez(path, speaker_embedding=np.array([{}]), allow_pickle=True)
    assert VoiceStore(tmp_path).load_prompt(made, "m") is None  # pickles are not read
    store.delete("v")
    store.save_prompt(made, "m", PROMPT)  # a request that was encoding goes on
    assert folders(tmp_path) == []


def test_concurrent_creation_of_one_voice_has_one_winner(tmp_path):
    def create(index):
        try:
            return VoiceStore(tmp_path).create("same", CLIP, str(index)).text
        except VoiceExists:
            return None

    with ThreadPoolExecutor(20) as pool:
        winners = [text for text in pool.map(create, range(20)) if text]
    assert winners == [VoiceStore(tmp_path).get("same").text]
    assert len(folders(tmp_path)) == 1


def in_process(root, code):
    """Start a Python process with a store in `root`, a clip, and `code`."""
    head = """
        import os, signal, sys
        from pathlib import Path
        from izwi.errors import VoiceExists, VoiceNotFound
        from izwi_api.voices.store import VoiceStore
        root = Path(sys.argv[1])
        clip = Path(sys.argv[2]).read_bytes()
        store = VoiceStore(root)
        """
    clip = root.parent / "clip.wav"
    clip.write_bytes(CLIP)
    source = textwrap.dedent(head) + textwrap.dedent(code)
    command = [sys.executable, "-c", source, str(root), str(clip)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def test_twenty_uploads_of_four_processes(tmp_path):
    root = tmp_path / "voices"
    code = """
        print("ready", flush=True)
        sys.stdin.readline()
        for turn in range(5):
            try:
                print("won", store.create("same", clip, str(os.getpid())).text)
            except VoiceExists:
                print("lost")
            store.create(f"own-{os.getpid()}-{turn}", clip, None)
        """
    processes = [in_process(root, code) for _ in range(4)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    assert not root.exists()  # the four make the index at the same time, too
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    reported = [
        line for process in processes for line in process.communicate(timeout=60)[0].split("\n")
    ]
    assert [process.returncode for process in processes] == [0] * 4
    assert reported.count("lost") == 19
    (won,) = [line for line in reported if line.startswith("won")]
    voices = {voice.name: voice for voice in check_whole(root)}
    assert len(voices) == 21
    assert voices["same"].text == won.removeprefix("won ")


def test_a_process_that_is_killed_leaves_whole_voices(tmp_path):
    root = tmp_path / "voices"
    code = """
        for turn in range(10_000):
            store.create(f"v-{turn}", clip, "la")
            print(turn, flush=True)
            if turn % 3 == 0:
                store.delete(f"v-{turn}")
        """
    for run in range(4):
        acknowledged = -1
        with in_process(root, code.replace("v-", f"v-{run}-")) as process:
            for line in process.stdout:
                acknowledged = int(line)
                if acknowledged == 7:
                    time.sleep(np.random.default_rng().uniform(0, 0.03))
                    process.kill()
        names = {voice.name for voice in check_whole(root)}
        kept = {f"v-{run}-{turn}" for turn in range(acknowledged) if turn % 3}
        assert acknowledged >= 7
        assert kept <= names


def kills_itself(root, code):
    with in_process(root, code) as process:
        return process.wait(60) == -signal.SIGKILL


KILLED = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("import izwi_api.voices.folders as m; m.write_prompts = lambda *_: KILL", []),
        ("import izwi_api.voices.index as m; m._insert = lambda *_: KILL", []),
        # It has its place, but its row was not written: it is taken in.
        ("import izwi_api.voices.index as m; m.sync_folder = lambda *_: KILL", ["v"]),
    ],
)
def test_killed_in_the_middle_of_making(tmp_path, where, names):
    root = tmp_path / "voices"
    assert kills_itself(root, f"{where.replace('KILL', KILLED)}\nstore.create('v', clip, 'la')")
    assert [voice.name for voice in check_whole(root)] == names
    left = [path for path in root.iterdir() if path.name.startswith(".new-")]
    assert len(left) == 1 - len(names)
    for path in left:  # when nobody can be at it any more, it goes
        os.utime(path, (1, 1))
    VoiceStore(root).names()
    assert [name for name in folders(root) if name.startswith(".")] == []


@pytest.mark.parametrize("step", ["shutil.rmtree = ", "VoiceIndex.change = "])
def test_killed_in_the_middle_of_deleting(tmp_path, step):
    root = tmp_path / "voices"
    running = VoiceStore(root)
    running.create("other", CLIP, None)
    code = f"""
        import shutil
        from izwi_api.voices.index import VoiceIndex
        store.create("v", clip, "la")
        {step}lambda *_, **__: {KILLED}
        store.delete("v")
        """
    assert kills_itself(root, code)
    running.check_free("v")
    running.create("v", CLIP, "new")
    assert [voice.text for voice in check_whole(root)] == [None, "new"]
    assert [name for name in folders(root) if name.startswith(".")] == []


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "-a", "_a", "a\n", "a" * 65, "a\0", "a ", "\\"]
)
def test_names_against_the_rule(tmp_path, name):
    store = VoiceStore(tmp_path / "voices")
    with pytest.raises(InvalidRequest):
        store.create(name, CLIP, None)
    with pytest.raises(VoiceNotFound):
        store.get(name)
    with pytest.raises(VoiceNotFound):
        store.delete(name)
    with pytest.raises(InvalidRequest):
        store.create(new_id("voice"), CLIP, None)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(VoiceNotFound):
        store.get("\ud800")


def test_a_full_disk_leaves_no_half_voice(tmp_path, monkeypatch):
    store = VoiceStore(tmp_path)
    store.create("before", CLIP, None)
    real = voice_files.os.fsync
    for successes in range(3):
        left = [successes]

        def fsync(descriptor, left=left):
            if left[0] == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            left[0] -= 1
            real(descriptor)

        monkeypatch.setattr(voice_files.os, "fsync", fsync)
        with pytest.raises(StorageFull):
            store.create("v", CLIP, "la", encoded={"m": PROMPT})
        with pytest.raises(StorageFull):
            store.consents.create("c", "en", CLIP)
        monkeypatch.undo()
        assert [voice.name for voice in check_whole(tmp_path)] == ["before"]
    made = store.create("v", CLIP, "la")
    monkeypatch.setattr(
        voice_files.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full"))
    )
    store.save_prompt(made, "m", PROMPT)  # only a cache: told in the log
    assert store.load_prompt(made, "m") is PROMPT
    store.delete("v")  # makes room, so it needs none


def test_a_full_index_leaves_no_half_voice(tmp_path):
    store = VoiceStore(tmp_path)
    store.create("before", CLIP, None)
    with closing(sqlite3.connect(tmp_path / INDEX_NAME)) as db:
        size = db.execute("PRAGMA page_count").fetchone()[0]
    real = sqlite3.connect

    def connect(*arguments, **options):
        db = real(*arguments, **options)
        db.execute(f"PRAGMA max_page_count = {size}")
        return db

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect)
        with pytest.raises(StorageFull):
            store.create("v", CLIP, "long " * 9000)
    assert [voice.name for voice in check_whole(tmp_path)] == ["before"]


def test_an_index_that_is_missing_is_made_again(tmp_path):
    store = VoiceStore(tmp_path)
    made = store.create("v", CLIP, "la", prompt="a calm voice", encoded={"m": PROMPT})
    consent = store.consents.create("c", "en-US", CLIP)
    renamed = store.consents.rename(consent.id, "another")
    for path in tmp_path.glob(INDEX_NAME + "*"):
        path.unlink()
    for reader in (store, VoiceStore(tmp_path)):
        assert reader.voices() == [made]
        assert reader.consents.page(None, 9) == [renamed]
    (tmp_path / INDEX_NAME).write_bytes(b"this is no index" * 100)
    with pytest.raises(IzwiError, match="move"):
        VoiceStore(tmp_path).names()


def test_an_index_of_a_newer_izwi_is_left_alone(tmp_path):
    VoiceStore(tmp_path).create("v", CLIP, None)
    with closing(sqlite3.connect(tmp_path / INDEX_NAME)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(IzwiError, match="newer"):
        VoiceStore(tmp_path).names()


def test_voice_store_ignores_folders_that_it_did_not_write(tmp_path, caplog):
    store = VoiceStore(tmp_path / "a")
    made = store.create("v", CLIP, "la")
    twin = VoiceStore(tmp_path / "b")
    twin.create("v", CLIP, "other")
    shutil.copytree(made.folder, tmp_path / "b" / made.id)  # its name is taken
    (tmp_path / "b" / "notes").mkdir()
    for name, change in (("x", {"sample": "../../clip.wav"}), ("y", {"id": "../y"})):
        shutil.copytree(made.folder, tmp_path / "b" / name)
        manifest = tmp_path / "b" / name / "voice.json"
        fields = json.loads(manifest.read_text()) | {"name": name} | change
        manifest.write_text(json.dumps(fields))
    assert [voice.text for voice in VoiceStore(tmp_path / "b").voices()] == ["other"]
    assert caplog.text.count("is not indexed") == 3
    twin.delete("v")
    assert [voice.text for voice in VoiceStore(tmp_path / "b").voices()] == ["la"]


DAMAGED = {
    "created_at beyond SQLite": {"created_at": 10**30},
    "created_at no number": {"created_at": "now"},
    "text no text": {"text": {}},
    "consent no text": {"consent": [1]},
    "sample no text": {"sample": 7},
    "half a surrogate pair": {"text": "\ud800"},
    "name no text": {"name": ["v"]},
    "id no text": {"id": 1},
    "format no number": {"format": "1"},
    "another format": {"format": 2},
}


def damaged_manifests(fields):
    for change in DAMAGED.values():
        if change.keys() <= fields.keys():
            yield json.dumps(fields | change).encode()
    for field in fields:
        yield json.dumps({key: value for key, value in fields.items() if key != field}).encode()
    yield b"[" * 200_000
    yield b'{"more": ' + b"[" * 200_000
    yield b'{"format": 1, "more": "' + b"x" * 300_000
    yield b"null"
    yield b""
    yield b"\xff"


@pytest.mark.parametrize("kind", ["voice", "consent"])
def test_a_damaged_manifest_hides_no_other_voice(tmp_path, monkeypatch, kind):
    said: list[str] = []
    monkeypatch.setattr(index.logger, "warning", lambda text, *args: said.append(text % args))
    store = VoiceStore(tmp_path)
    good = store.create("good", CLIP, "la")
    spoiled = store.create("bad", CLIP, "la")
    consent = store.consents.create("c", "en-US", CLIP)
    spoiled_consent = store.consents.create("d", "en-US", CLIP)
    folder = spoiled.folder if kind == "voice" else spoiled_consent.folder
    fields = json.loads((folder / f"{kind}.json").read_text())
    fields.pop("sample_bytes" if kind == "voice" else "recording_bytes")
    for content in damaged_manifests(fields):
        (folder / f"{kind}.json").write_bytes(content)
        for path in tmp_path.glob(INDEX_NAME + "*"):
            path.unlink()
        said.clear()
        reader = VoiceStore(tmp_path)
        kept = [spoiled, good] if kind == "consent" else [good]
        assert reader.voices() == kept, content[:80]
        kept_ids = {consent.id, spoiled_consent.id} if kind == "voice" else {consent.id}
        assert {kept.id for kept in reader.consents.page(None, 9)} == kept_ids
        assert reader.get("good") == good
        (warning,) = said
        assert warning.startswith(f"{folder} is not indexed"), content[:80]


@pytest.mark.parametrize(
    "damage",
    [
        *("ALTER TABLE voices DROP COLUMN text", "ALTER TABLE consents DROP COLUMN language"),
        *("ALTER TABLE voices ADD COLUMN more TEXT NOT NULL DEFAULT ''", "DROP TABLE consents"),
        "DROP TABLE voices; CREATE TABLE voices (id, name, created_at, text, prompt, consent, "
        "sample, sample_bytes); INSERT INTO voices DEFAULT VALUES",
    ],
)
def test_an_index_with_other_columns_is_made_again(tmp_path, caplog, damage):
    store = VoiceStore(tmp_path)
    made, consent = store.create("v", CLIP, "la"), store.consents.create("c", "en-US", CLIP)
    with closing(sqlite3.connect(tmp_path / INDEX_NAME)) as db:
        db.executescript(damage)
    for _ in range(2):
        reader = VoiceStore(tmp_path)
        assert reader.voices() == [made]
        assert reader.consents.page(None, 9) == [consent]
    assert caplog.text.count("is made again") == 1
    reader.create("another", CLIP, None)


def write_legacy(root, name, text):
    """A voice as izwi wrote it before there was an index."""
    folder = root / name
    (folder / "prompts").mkdir(parents=True)
    soundfile.write(folder / "reference.wav", TONE, 24_000, subtype="FLOAT")
    fields = {"name": name, "text": text, "created_at": 1_700_000_000}
    (folder / "voice.json").write_text(json.dumps(fields), "utf-8")
    np.savez(folder / "prompts" / "org%2Fm%40f.npz", speaker_embedding=PROMPT.speaker_embedding)


def test_voices_of_an_older_izwi_are_taken_in(tmp_path):
    write_legacy(tmp_path, "old.One", "ünd")
    write_legacy(tmp_path, "other", None)
    (tmp_path / ".new-x").mkdir()
    code = "print(len(store.names()))"
    processes = [in_process(tmp_path, code) for _ in range(3)]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["2\n"] * 3
    store = VoiceStore(tmp_path)
    voice = store.get("old.One")
    assert is_id(voice.id)
    assert (voice.text, voice.created_at, voice.type) == ("ünd", 1_700_000_000, "audio_sample")
    np.testing.assert_array_equal(samples_of(voice), TONE)
    kept = store.load_prompt(voice, "org/m@f")
    np.testing.assert_array_equal(kept.speaker_embedding, PROMPT.speaker_embedding)
    assert store.get("other").text is None
    write_legacy(tmp_path, "late", "la")  # by an older izwi beside us
    assert VoiceStore(tmp_path).names() == ["late", "old.One", "other"]


def test_consents_page_by_page(tmp_path):
    store = VoiceStore(tmp_path).consents
    assert store.page(None, 20) == []
    made = [store.create(f"c {index}", "en-US", CLIP) for index in range(5)]
    newest_first = sorted((consent.id for consent in made), reverse=True)
    assert [consent.id for consent in store.page(None, 3)] == newest_first[:3]
    store.delete(newest_first[2])  # a place in the list all the same
    assert [consent.id for consent in store.page(newest_first[2], 9)] == newest_first[3:]
    assert store.rename(newest_first[0], "new").name == store.get(newest_first[0]).name == "new"
    for unknown in (newest_first[2], new_id("cons"), "../x", "cons_1"):
        with pytest.raises(ConsentNotFound):
            store.get(unknown)
        with pytest.raises(ConsentNotFound):
            store.rename(unknown, "x")
        with pytest.raises(ConsentNotFound):
            store.delete(unknown)
    for name, language in (("", "en"), ("a\nb", "en"), ("x" * 257, "en"), ("c", ""), ("c", "e n")):
        with pytest.raises(InvalidRequest):
            store.create(name, language, CLIP)
    with pytest.raises(InvalidRequest):
        store.page("x' OR 1", 9)


def test_an_archive_carries_a_voice(tmp_path):
    voice = VoiceArchive("Zoë", CLIP, "la", None, "yes")
    content = pack_voice(voice)
    assert unpack_voice(content, len(CLIP)) == voice
    with pytest.raises(TooLarge):
        unpack_voice(content, len(CLIP) - 1)
    changed = pack_voice(VoiceArchive("../up", CLIP))
    for broken in (
        b"",
        b"PK",
        content[:-40],
        content.replace(b"voice.json", b"other.json"),
        changed,
    ):
        with pytest.raises(InvalidRequest):
            unpack_voice(broken, len(CLIP))


def archive_of(fields, compression=zipfile.ZIP_DEFLATED, level=None):
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", compression, compresslevel=level) as archive:
        archive.writestr("voice.json", json.dumps(fields))
        archive.writestr("sample.wav", CLIP)
    return buffer.getvalue()


ARCHIVED = {"format": 1, "name": "me", "text": "la", "prompt": None, "consent": "y" * 400}


@pytest.mark.parametrize(
    "change",
    [*DAMAGED.values(), {"consent": "\ud800"}, {"more": [[]] * 9}],
    ids=lambda change: str(change)[:40],
)
def test_an_archive_with_a_damaged_manifest_is_refused(change):
    known = {key: value for key, value in change.items() if key in ARCHIVED}
    if not known:
        unpack_voice(archive_of(ARCHIVED | change), len(CLIP))  # no field of an archive
        return
    with pytest.raises(InvalidRequest, match="exported voice"):
        unpack_voice(archive_of(ARCHIVED | change), len(CLIP))


@pytest.mark.parametrize(
    "compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
@given(data=st.data())
def test_a_damaged_archive_is_a_refusal(compression, data):
    content = bytearray(archive_of(ARCHIVED, compression))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        damage = data.draw(st.binary(min_size=1, max_size=8))
        content[at : at + len(damage)] = damage
    # the whole archive, or one that was cut off
    cut = data.draw(st.integers(0, len(content)))
    for part in (content, content[:cut]):
        with suppress(InvalidRequest, TooLarge):
            unpack_voice(bytes(part), len(CLIP))


def test_a_damaged_deflate_stream_is_a_refusal():
    content = bytearray(archive_of(ARCHIVED))
    at = content.find(b"voice.json") + len(b"voice.json")
    content[at : at + 30] = b"\xff" * 30
    with pytest.raises(InvalidRequest, match="exported voice"):
        unpack_voice(bytes(content), len(CLIP))


def test_kinds_of_audio_by_their_first_bytes():
    kinds = {
        CLIP: ".wav",
        b"fLaC": ".flac",
        b"OggS": ".ogg",
        b"ID3\x04": ".mp3",
        b"\xff\xfb\x90": ".mp3",
        b"\xff\xf1P": ".aac",
        b"\x1aE\xdf\xa3": ".webm",
        b"\0\0\0 ftypM4A ": ".m4a",
        b"../../x": ".bin",
    }
    assert {content: audio_kind(content)[0] for content in kinds} == kinds


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
