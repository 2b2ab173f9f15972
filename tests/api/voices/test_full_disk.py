"""The disk of the voices is full: voices can be read, and nothing is stored in part."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing, contextmanager, suppress

import httpx
import pytest

from izwi.errors import StorageFull
from izwi_api.serve.app import create_app
from izwi_api.settings import Settings
from izwi_api.voices import files as voice_files
from izwi_api.voices import index as voice_index
from izwi_api.voices.store import VoiceStore
from tests.api.conftest import FakeEngine, listening
from tests.api.routes.test_voices import SPEECH, VOICES, check, world

WAV = b"RIFFxxxxWAVE" + b"\0" * 5000
NO_ROOM = OSError(28, "No space left on device")


class RealDisk:
    """A file system of 2 MiB, mounted for the test."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder, self._filling = folder, folder / "filling"
        command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("file systems cannot be mounted here")

    def fill(self):
        with self._filling.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 4096)

    def free(self):
        self._filling.unlink()

    def close(self):
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


class InjectedDisk:
    """The errors of SQLite and of files on a full file system."""

    def __init__(self, folder, monkeypatch):
        folder.mkdir()
        self.folder, self._is_full = folder, False
        disk, connect, fsync = self, sqlite3.connect, voice_files.os.fsync

        class Connection(sqlite3.Connection):
            is_alone = False

            def execute(self, statement, *values):
                if "EXCLUSIVE" in statement:
                    self.is_alone = True
                elif disk._is_full and not self.is_alone:
                    raise full(sqlite3.OperationalError, sqlite3.SQLITE_IOERR_SHMSIZE)
                elif disk._is_full and "BEGIN" in statement:
                    raise full(sqlite3.OperationalError, sqlite3.SQLITE_FULL)
                return super().execute(statement, *values)

        def sync(descriptor):
            if self._is_full:
                raise NO_ROOM
            fsync(descriptor)

        monkeypatch.setattr(voice_files.os, "fsync", sync)
        monkeypatch.setattr(
            voice_index.sqlite3,
            "connect",
            lambda *args, **options: connect(*args, **options, factory=Connection),
        )

    def fill(self):
        self._is_full = True

    def free(self):
        self._is_full = False

    def close(self):
        self.free()


def full(kind, code):
    error = kind("full")
    error.sqlite_errorcode = code
    return error


@pytest.fixture(params=["real", "injected"])
def disk(request, tmp_path, monkeypatch):
    folder = tmp_path / "disk"
    made = RealDisk(folder) if request.param == "real" else InjectedDisk(folder, monkeypatch)
    with closing(made):
        yield made


@contextmanager
def serving(home):
    app = create_app(FakeEngine(), world(), Settings(home=home, decode_workers=0))
    with listening(app) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        yield client


def test_voices_are_read_and_heard_and_new_ones_refused(disk, tone_wav):
    def upload(client, name):
        form = {"name": name, "consent": "yes", "ref_text": "la"}
        return client.post(VOICES, data=form, files={"audio_sample": ("a.wav", tone_wav(1.0))})

    def speak(client):
        return client.post(SPEECH, json={"model": "tts", "input": "hi", "voice": "me"})

    with serving(disk.folder) as client:
        assert upload(client, "me").status_code == 200
        disk.fill()
        with serving(disk.folder) as started_later:
            for one in (client, started_later):
                listed = one.get(VOICES)
                assert listed.status_code == 200, listed.text
                assert "me" in listed.text
                assert speak(one).status_code == 200
                check(upload(one, "you"), 507, "storage_full")
                # an existing name is reported before the full disk
                check(upload(one, "me"), 400, "voice_exists", "name")
        disk.free()
        assert upload(client, "you").status_code == 200


def test_deleted_voice_frees_its_name_on_a_full_disk(disk):
    store = VoiceStore(disk.folder / "voices")
    store.create("me", WAV * 50, "la")
    consent = store.consents.create("mine", "en-US", WAV)
    disk.fill()
    store.delete("me")
    store.consents.delete(consent.id)
    assert store.names() == VoiceStore(disk.folder / "voices").names() == []
    assert store.consents.page(None, 10) == []
    if isinstance(disk, InjectedDisk):
        disk.free()  # on the real one there is room now
    store.create("me", WAV, "la")
    assert store.names() == ["me"]


def test_a_folder_that_is_not_in_the_index_waits_until_there_is_room(disk, caplog):
    root = disk.folder / "voices"
    voice = VoiceStore(root).create("me", WAV, "la")
    other = VoiceStore(root).create("you", WAV, "la")
    with closing(sqlite3.connect(root / "index.sqlite3")) as db:
        db.execute("DELETE FROM voices WHERE id = ?", (other.id,))
        db.commit()
    disk.fill()
    store = VoiceStore(root)
    if isinstance(disk, InjectedDisk):
        assert store.names() == ["me"]
        assert "not indexed yet" in caplog.text
    assert store.get("me").id == voice.id
    disk.free()
    assert store.names() == ["me", "you"]


def test_an_index_that_cannot_be_made_says_that_the_disk_is_full(disk):
    (disk.folder / "voices").mkdir()
    disk.fill()
    with pytest.raises(StorageFull):
        VoiceStore(disk.folder / "voices").names()
    disk.free()
    assert VoiceStore(disk.folder / "voices").names() == []
