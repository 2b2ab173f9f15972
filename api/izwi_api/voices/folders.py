"""Folders with one audio file and one row each: the storage of voices and consents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from izwi.inputs.speech import VoicePrompt
from izwi_api.voices.disk import report_full_disk
from izwi_api.voices.files import sync_folder, throw_away, unfinished_folder, write_durably
from izwi_api.voices.index import MANIFESTS, Fields, VoiceIndex, manifest_bytes
from izwi_api.voices.prompts import write_prompts


class Folders:
    """The folders of one table. Safe among processes: a folder appears complete or not at all.

    Args:
        root: Their folder; each is named by its id.
        index: The index of that folder.
        table: "voices" or "consents".
    """

    def __init__(self, root: Path, index: VoiceIndex, table: str):
        self._root, self._index, self._table = root, index, table

    def rows(self, rest: str, *values: object) -> Iterator[Fields]:
        """Yield rows whose folder exists; `rest` follows SELECT * FROM the table."""
        for row in self._index.find(f"SELECT * FROM {self._table} {rest}", *values):
            if (self._root / row["id"]).is_dir():
                yield row

    def create(
        self,
        fields: Fields,
        audio_name: str,
        audio: bytes,
        prompts: Mapping[str, VoicePrompt] | None = None,
    ) -> None:
        """Store an audio file with its row. Both are on disk when this returns.

        Args:
            fields: The row, which is also the folder's manifest.
            audio_name: Name of the audio's file.
            audio: Its content.
            prompts: Prompts that checkpoints have encoded so far; None for files that are not
                encoded.

        Raises:
            NameTaken: Another row has the name.
            StorageFull: The disk is full.
        """
        with report_full_disk(), unfinished_folder(self._root) as folder:
            write_durably(folder / audio_name, audio)
            write_durably(folder / MANIFESTS[self._table], manifest_bytes(fields))
            if prompts is not None:
                write_prompts(folder, dict(prompts))
            sync_folder(folder)
            self._index.publish(self._table, folder, fields)

    def delete(self, row_id: str) -> None:
        """Delete a folder and its row. Raises FileNotFoundError if another process did."""
        throw_away(self._root / row_id)  # before its row: on a full disk this frees room to write
        self._index.forget(self._table, row_id)
