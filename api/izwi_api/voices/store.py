"""Stored voices: one folder each and one index. docs/voices.md has the format.

<root>/index.sqlite3              names and ids; rebuilt from the folders if it is missing
<root>/<voice id>/sample.<kind>   the clip as uploaded
                  voice.json      the voice's row of the index
                  prompts/        the clip as checkpoints encoded it; a cache
<root>/<consent id>/              a consent recording, see `consents.py`

Knows no model. Voices belong to the server, not to the caller who made them.
"""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from izwi.errors import InvalidRequest, VoiceExists, VoiceNotFound
from izwi.inputs.speech import VoicePrompt
from izwi_api.voices.consents import ConsentStore
from izwi_api.voices.files import audio_kind, is_id, is_name, media_type_of, new_id
from izwi_api.voices.folders import Folders
from izwi_api.voices.index import Fields, NameTaken, VoiceIndex
from izwi_api.voices.prompts import PromptCache, encoding_turn

REFERENCE_RATE = 24_000
_NO_PROMPTS: Mapping[str, VoicePrompt] = {}


@dataclass(frozen=True, slots=True)
class StoredVoice:
    """One stored voice. It never changes.

    Attributes:
        id: "voice_..."; never reused.
        name: Unique in the store.
        text: Transcript of the clip; None if only the speaker's voice is imitated.
        created_at: Seconds since 1970.
        folder: Folder of its files.
        sample_name: Name of the clip's file in it.
        sample_bytes: Size of the clip's file.
        prompt: The description that the voice was made from; None for a person's voice.
        consent: The speaker's consent: the id of a recording, or a statement.
    """

    id: str
    name: str
    text: str | None
    created_at: int
    folder: Path
    sample_name: str
    sample_bytes: int
    prompt: str | None = None
    consent: str | None = None

    @property
    def type(self) -> str:
        """How it was made: "audio_sample" or "prompt"."""
        return "audio_sample" if self.prompt is None else "prompt"

    @property
    def media_type(self) -> str:
        """Media type of the clip's file."""
        return media_type_of(self.folder / self.sample_name)

    def sample(self) -> bytes:
        """Return the clip's file. Raises VoiceNotFound if the voice was deleted meanwhile."""
        try:
            return (self.folder / self.sample_name).read_bytes()
        except FileNotFoundError as error:
            raise _no_voice(self.name) from error


class VoiceStore:
    """The voices in one folder. Safe among processes: a voice appears complete or not at all.

    All methods raise as `VoiceIndex` does; those that write raise StorageFull.

    Attributes:
        consents: The consent recordings in the same folder.
    """

    def __init__(self, root: Path):
        self._root = root
        index = VoiceIndex(root)
        self._folders = Folders(root, index, "voices")
        self._prompts = PromptCache()
        self.consents = ConsentStore(root, index)

    def names(self) -> list[str]:
        """Return the names of all voices, sorted."""
        return [voice.name for voice in self.voices()]

    def voices(self) -> list[StoredVoice]:
        """Return all voices, sorted by name."""
        return [self._voice(row) for row in self._folders.rows("ORDER BY name")]

    def get(self, key: str) -> StoredVoice:
        """Return a voice by id or name.

        Raises:
            VoiceNotFound: It does not exist.
        """
        key = unicodedata.normalize("NFC", key)
        if not (is_id(key) or is_name(key)):
            raise VoiceNotFound("there is no voice of that name", param="voice")
        column = "id" if is_id(key) else "name"
        for row in self._folders.rows(f"WHERE {column} = ?", key):
            return self._voice(row)
        raise _no_voice(key)

    def check_free(self, name: str) -> None:
        """Raise VoiceExists, or InvalidRequest as `check_name`, unless a name is available."""
        name = check_name(name)
        try:
            self.get(name)
        except VoiceNotFound:
            return
        raise _taken(name)

    def create(
        self,
        name: str,
        sample: bytes,
        text: str | None,
        *,
        consent: str | None = None,
        prompt: str | None = None,
        encoded: Mapping[str, VoicePrompt] = _NO_PROMPTS,
    ) -> StoredVoice:
        """Store a new voice. It is on disk when this returns.

        Args:
            name: See `check_name`.
            sample: An audio file that was decoded before.
            text: What it says, or None.
            consent: The id of a recording, or a statement.
            prompt: The description that the sample was made from.
            encoded: Prompts of the sample so far, by checkpoint.

        Raises:
            InvalidRequest: The name is invalid.
            VoiceExists: The name is taken.
        """
        name = check_name(name)
        voice = StoredVoice(
            id=new_id("voice"),
            name=name,
            text=text,
            created_at=int(time.time()),
            folder=self._root,
            sample_name="sample" + audio_kind(sample)[0],
            sample_bytes=len(sample),
            prompt=prompt,
            consent=consent,
        )
        fields = _fields(voice)
        try:
            self._folders.create(fields, voice.sample_name, sample, encoded)
        except NameTaken as error:
            raise _taken(name) from error
        return self._voice(fields)

    def delete(self, key: str) -> StoredVoice:
        """Delete a voice, by id or name, and return it. Raises VoiceNotFound."""
        voice = self.get(key)
        try:
            self._folders.delete(voice.id)
        except FileNotFoundError as error:
            raise _no_voice(key) from error
        self._prompts.forget(voice.folder)
        return voice

    def load_prompt(self, voice: StoredVoice, checkpoint: str) -> VoicePrompt | None:
        """Return a checkpoint's prompt of the clip, or None if it is not stored."""
        return self._prompts.load(voice.folder, checkpoint, voice.text)

    def save_prompt(self, voice: StoredVoice, checkpoint: str, prompt: VoicePrompt) -> None:
        """Store a checkpoint's prompt of the clip."""
        self._prompts.save(voice.folder, checkpoint, prompt)

    def encoding_turn(self, voice: StoredVoice, checkpoint: str) -> AbstractContextManager[bool]:
        """Take the lock to encode the clip; see `prompts.encoding_turn`."""
        return encoding_turn(voice.folder, checkpoint)

    def _voice(self, row: Fields) -> StoredVoice:
        return StoredVoice(
            id=row["id"],
            name=row["name"],
            text=row["text"],
            created_at=row["created_at"],
            folder=self._root / row["id"],
            sample_name=row["sample"],
            sample_bytes=row["sample_bytes"],
            prompt=row["prompt"],
            consent=row["consent"],
        )


def check_name(name: str) -> str:
    """Return a voice's name in Unicode's composed form.

    Raises:
        InvalidRequest: It is not a valid name.
    """
    name = unicodedata.normalize("NFC", name)
    if not is_name(name):
        raise InvalidRequest(
            "a voice's name is 1 to 64 letters, digits, spaces or any of _ . - ' ( ), and starts "
            "with a letter or a digit",
            param="name",
        )
    return name


def _fields(voice: StoredVoice) -> Fields:
    return {
        "id": voice.id,
        "name": voice.name,
        "created_at": voice.created_at,
        "text": voice.text,
        "prompt": voice.prompt,
        "consent": voice.consent,
        "sample": voice.sample_name,
        "sample_bytes": voice.sample_bytes,
    }


def _taken(name: str) -> VoiceExists:
    return VoiceExists(f"voice {name!r} exists already", param="name")


def _no_voice(key: str) -> VoiceNotFound:
    return VoiceNotFound(f"there is no voice {key!r}", param="voice")
