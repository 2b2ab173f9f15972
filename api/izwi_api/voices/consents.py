"""Consent recordings, stored beside the voices.

<root>/<consent id>/recording.<kind>   the recording as uploaded
                    consent.json       its row of the index
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from izwi.errors import ConsentNotFound, InvalidRequest
from izwi_api.voices.disk import report_full_disk
from izwi_api.voices.files import audio_kind, is_id, new_id, replace_durably
from izwi_api.voices.folders import Folders
from izwi_api.voices.index import MANIFESTS, Fields, VoiceIndex, manifest_bytes

_MAX_NAME_CHARS = 256
_LANGUAGE = re.compile(r"[A-Za-z]{2,8}(?:-[A-Za-z0-9]{1,8}){0,8}")


@dataclass(frozen=True, slots=True)
class StoredConsent:
    """One consent recording.

    Attributes:
        id: "cons_..."; never reused. Ids sort by creation time.
        name: A label, which need not be unique.
        language: BCP 47 tag of the recording.
        created_at: Seconds since 1970.
        folder: Folder of its files.
        recording_name: Name of the recording's file in it.
        recording_bytes: Size of that file.
    """

    id: str
    name: str
    language: str
    created_at: int
    folder: Path
    recording_name: str
    recording_bytes: int


class ConsentStore:
    """The consent recordings of a folder, with the guarantees and errors of `VoiceStore`."""

    def __init__(self, root: Path, index: VoiceIndex):
        self._root, self._index = root, index
        self._folders = Folders(root, index, "consents")

    def create(self, name: str, language: str, recording: bytes) -> StoredConsent:
        """Store a recording.

        Args:
            name: Its label, 1 to 256 printable characters.
            language: BCP 47 tag, like "en-US".
            recording: An audio file that was decoded before.

        Raises:
            InvalidRequest: The name or the language is invalid.
        """
        check_label(name)
        if not _LANGUAGE.fullmatch(language):
            raise InvalidRequest("language is a BCP 47 tag, like 'en-US'", param="language")
        consent = StoredConsent(
            id=new_id("cons"),
            name=name,
            language=language,
            created_at=int(time.time()),
            folder=self._root,
            recording_name="recording" + audio_kind(recording)[0],
            recording_bytes=len(recording),
        )
        fields = _fields(consent)
        self._folders.create(fields, consent.recording_name, recording)
        return self._consent(fields)

    def get(self, consent_id: str) -> StoredConsent:
        """Read a recording's row. Raises ConsentNotFound."""
        if is_id(consent_id):
            for row in self._folders.rows("WHERE id = ?", consent_id):
                return self._consent(row)
        raise _no_consent()

    def page(self, after: str | None, limit: int) -> list[StoredConsent]:
        """Return recordings, newest first.

        Args:
            after: Return those created before the one with this id, which may be deleted; None for
                all.
            limit: Maximum number.

        Raises:
            InvalidRequest: `after` is not an id.
        """
        if after is not None and not is_id(after):
            raise InvalidRequest("after must be the id of a consent recording", param="after")
        rows = self._folders.rows("WHERE id < ? ORDER BY id DESC", after or "cons~")
        return [self._consent(row) for row in islice(rows, limit)]

    def rename(self, consent_id: str, name: str) -> StoredConsent:
        """Change the label of a recording. Raises ConsentNotFound and InvalidRequest."""
        check_label(name)
        with report_full_disk(), self._index.change() as db:
            consent = replace(self.get(consent_id), name=name)
            db.execute("UPDATE consents SET name = ? WHERE id = ?", (name, consent_id))
            manifest = consent.folder / MANIFESTS["consents"]
            try:
                replace_durably(manifest, manifest_bytes(_fields(consent)))
            except FileNotFoundError as error:
                raise _no_consent() from error
        return consent

    def delete(self, consent_id: str) -> None:
        """Delete a recording; voices that were made with it remain. Raises ConsentNotFound."""
        try:
            self._folders.delete(self.get(consent_id).id)
        except FileNotFoundError as error:
            raise _no_consent() from error

    def _consent(self, row: Fields) -> StoredConsent:
        return StoredConsent(
            id=row["id"],
            name=row["name"],
            language=row["language"],
            created_at=row["created_at"],
            folder=self._root / row["id"],
            recording_name=row["recording"],
            recording_bytes=row["recording_bytes"],
        )


def check_label(name: str) -> None:
    """Raise InvalidRequest unless a text is a valid label."""
    if not 0 < len(name.strip()) <= len(name) <= _MAX_NAME_CHARS or not name.isprintable():
        raise InvalidRequest(
            f"name must be 1 to {_MAX_NAME_CHARS} printable characters", param="name"
        )


def _fields(consent: StoredConsent) -> Fields:
    return {
        "id": consent.id,
        "name": consent.name,
        "language": consent.language,
        "created_at": consent.created_at,
        "recording": consent.recording_name,
        "recording_bytes": consent.recording_bytes,
    }


def _no_consent() -> ConsentNotFound:
    return ConsentNotFound("there is no consent recording of that id", param="consent")
