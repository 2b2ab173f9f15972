"""Folders of one sound and one row each, in one table of the index: what a stored thing is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from izwi.inputs import VoicePrompt
from izwi_api.voices.disk import report_full_disk
from izwi_api.voices.files import sync_folder, throw_away, unfinished_folder, write_durably
from izwi_api.voices.index import MANIFESTS, Fields, VoiceIndex, manifest_bytes
from izwi_api.voices.prompts import write_prompts


class Folders:
    """The folders of one table. Safe among processes: a folder appears whole or not at all.

    Args:
        root: Where they are, each under its id.
        index: Of that folder.
        table: "voices" or "consents".
    """

    def __init__(self, root: Path, index: VoiceIndex, table: str):
        self._root, self._index, self._table = root, index, table

    def rows(self, rest: str, *values: object) -> Iterator[Fields]:
        """Yield rows whose folder is there; `rest` follows SELECT * FROM the table."""
        for row in self._index.find(f"SELECT * FROM {self._table} {rest}", *values):
            if (self._root / row["id"]).is_dir():
                yield row

    def create(
        self,
        fields: Fields,
        sound_name: str,
        sound: bytes,
        prompts: Mapping[str, VoicePrompt] | None = None,
    ) -> None:
        """Keep a sound with its row. Both are on disk when this returns.

        Args:
            fields: The row, which is the folder's manifest too.
            sound_name: Name of the sound's file.
            sound: Its content.
            prompts: What checkpoints encoded it to, so far; None where nothing encodes it.

        Raises:
            NameTaken: Another row has the name.
            StorageFull: The disk is full.
        """
        with report_full_disk(), unfinished_folder(self._root) as folder:
            write_durably(folder / sound_name, sound)
            write_durably(folder / MANIFESTS[self._table], manifest_bytes(fields))
            if prompts is not None:
                write_prompts(folder, dict(prompts))
            sync_folder(folder)
            self._index.publish(self._table, folder, fields)

    def delete(self, row_id: str) -> None:
        """Delete a folder and its row. Raises FileNotFoundError if another process did."""
        throw_away(self._root / row_id)  # before its row: on a full disk this makes room to write
        self._index.forget(self._table, row_id)
