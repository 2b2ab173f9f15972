"""Cloned voices on disk: one folder a voice. Knows no model: it keeps what models need.

<root>/<name>/reference.wav       the clip, 24 kHz mono: with its text, the truth
              voice.json          name, text, when it was made
              prompts/<model>.npz what a checkpoint encoded the clip to; a cache of the truth
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
import soundfile

from izwi.audio.decode import decode_audio
from izwi.errors import InvalidRequest, VoiceExists, VoiceNotFound
from izwi.request import Float32, VoicePrompt

REFERENCE_RATE = 24_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class StoredVoice:
    """One cloned voice.

    Attributes:
        text: What the clip says; None where only the speaker's sound is followed.
        created_at: Seconds since 1970.
    """

    name: str
    text: str | None
    created_at: int
    folder: Path

    def reference(self) -> Float32:
        """Return the clip, mono at REFERENCE_RATE."""
        return decode_audio(self.folder / "reference.wav", REFERENCE_RATE)


class VoiceStore:
    """The voices in one folder. Safe among processes: a voice appears whole or not at all."""

    def __init__(self, root: Path):
        self._root = root

    def names(self) -> list[str]:
        """Return the names of all voices, sorted."""
        if not self._root.is_dir():
            return []
        return sorted(
            path.name
            for path in self._root.iterdir()
            if _NAME.fullmatch(path.name) and (path / "voice.json").is_file()
        )

    def get(self, name: str) -> StoredVoice:
        """Read a voice.

        Raises:
            VoiceNotFound: There is none of that name; a name against the rule is none.
        """
        folder = self._root / name
        if not _NAME.fullmatch(name):
            raise VoiceNotFound("there is no voice of that name", param="voice")
        try:
            fields = json.loads((folder / "voice.json").read_text("utf-8"))
            return StoredVoice(name, fields["text"], int(fields["created_at"]), folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise VoiceNotFound(f"there is no voice {name!r}", param="voice") from error

    def create(self, name: str, samples: Float32, text: str | None) -> StoredVoice:
        """Keep a new voice.

        Args:
            name: 1 to 64 of letters, digits, "_", "." and "-", not starting with a sign.
            samples: The clip, mono at REFERENCE_RATE.
            text: What it says, or None.

        Raises:
            InvalidRequest: The name is against the rule.
            VoiceExists: The name is taken.
        """
        check_name(name)
        self._root.mkdir(parents=True, exist_ok=True)
        created_at = int(time.time())
        # A dot in front keeps an unfinished voice out of `names`; rename makes it whole at once.
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=self._root))
        try:
            # floats, so that what is encoded later is exactly the clip that was given
            soundfile.write(scratch / "reference.wav", samples, REFERENCE_RATE, subtype="FLOAT")
            fields = {"name": name, "text": text, "created_at": created_at}
            (scratch / "voice.json").write_text(json.dumps(fields, ensure_ascii=False), "utf-8")
            (scratch / "prompts").mkdir()
            scratch.rename(self._root / name)
        except OSError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            if (self._root / name).exists():
                raise VoiceExists(f"voice {name!r} exists already", param="name") from error
            raise
        return StoredVoice(name, text, created_at, self._root / name)

    def delete(self, name: str) -> None:
        """Forget a voice. Raises VoiceNotFound."""
        folder = self.get(name).folder
        grave = Path(tempfile.mkdtemp(prefix=".old-", dir=self._root))
        try:
            folder.rename(grave / name)
        except FileNotFoundError as error:
            raise VoiceNotFound(f"there is no voice {name!r}", param="voice") from error
        finally:
            shutil.rmtree(grave, ignore_errors=True)

    def load_prompt(self, voice: StoredVoice, checkpoint: str) -> VoicePrompt | None:
        """Return what a checkpoint encoded the clip to, or None if that is not kept."""
        try:
            with np.load(_prompt_path(voice, checkpoint), allow_pickle=False) as arrays:
                embedding = arrays["speaker_embedding"].astype(np.float32)
                codes = arrays["codes"].astype(np.int64) if "codes" in arrays else None
        except (OSError, ValueError, KeyError):
            return None
        return VoicePrompt(embedding, codes, voice.text)

    def save_prompt(self, voice: StoredVoice, checkpoint: str, prompt: VoicePrompt) -> None:
        """Keep what a checkpoint encoded the clip to, beside those of others."""
        arrays = {"speaker_embedding": np.asarray(prompt.speaker_embedding, np.float32)}
        if prompt.codes is not None:
            arrays["codes"] = np.asarray(prompt.codes, np.int64)
        path = _prompt_path(voice, checkpoint)
        handle, scratch = tempfile.mkstemp(prefix=".new-", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        Path(scratch).replace(path)


def check_name(name: str) -> None:
    """Raise InvalidRequest unless the name can be a voice's."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            "a voice's name is 1 to 64 letters, digits, '_', '.' or '-', "
            "and starts with a letter or a digit",
            param="name",
        )


def _prompt_path(voice: StoredVoice, checkpoint: str) -> Path:
    return voice.folder / "prompts" / f"{quote(checkpoint, safe='')}.npz"
