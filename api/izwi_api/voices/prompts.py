"""Encoded clips: stored beside each clip, the latest cached in memory.

<voice's folder>/prompts/<checkpoint>.npz
    speaker_embedding   (hidden,) float32
    codes               (frames, codebooks) int64; absent if the clip's text is not known

It is a cache: missing or damaged files are encoded again from the clip.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import numpy as np

from izwi.inputs.speech import VoicePrompt
from izwi_api.voices.files import replace_durably, write_durably

logger = logging.getLogger(__name__)

# A clip of half a minute takes about 50 KiB.
_MAX_KEPT = 256
# File systems take names of 255 bytes.
_MAX_NAME_CHARS = 200


class PromptCache:
    """The prompts of the voices in one folder. Safe among threads and processes.

    A voice is identified by its id, which is never reused, and its folder.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], VoicePrompt] = OrderedDict()

    def load(self, folder: Path, checkpoint: str, text: str | None) -> VoicePrompt | None:
        """Return the prompt of a folder's clip for a checkpoint, or None."""
        key = (folder.name, checkpoint)
        with self._lock:
            prompt = self._kept.get(key)
            if prompt is not None:
                self._kept.move_to_end(key)
                return prompt
        try:
            # Opened here, because numpy does not close a damaged file that it opened itself.
            with (
                _path(folder, checkpoint).open("rb") as file,
                np.load(file, allow_pickle=False) as arrays,
            ):
                embedding = arrays["speaker_embedding"].astype(np.float32)
                codes = arrays["codes"].astype(np.int64) if "codes" in arrays else None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        prompt = VoicePrompt(embedding, codes, text)
        self._remember(key, prompt)
        return prompt

    def save(self, folder: Path, checkpoint: str, prompt: VoicePrompt) -> None:
        """Store a prompt. If the disk is full, the next process encodes the clip again."""
        self._remember((folder.name, checkpoint), prompt)
        try:
            (folder / "prompts").mkdir(exist_ok=True)
            replace_durably(_path(folder, checkpoint), _as_npz(prompt))
        except FileNotFoundError:
            pass  # the voice was deleted meanwhile; requests that use it continue
        except OSError as error:
            logger.warning("a voice's prompt is not kept on disk: %s", error)

    def forget(self, folder: Path) -> None:
        """Remove a deleted voice's prompts from memory."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == folder.name]:
                del self._kept[key]

    def _remember(self, key: tuple[str, str], prompt: VoicePrompt) -> None:
        with self._lock:
            self._kept[key] = prompt
            self._kept.move_to_end(key)
            while len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)


def write_prompts(folder: Path, prompts: dict[str, VoicePrompt]) -> None:
    """Write the prompts of a voice whose folder is not complete yet. Raises OSError."""
    (folder / "prompts").mkdir()
    for checkpoint, prompt in prompts.items():
        write_durably(_path(folder, checkpoint), _as_npz(prompt))


@contextmanager
def encoding_turn(folder: Path, checkpoint: str) -> Generator[bool]:
    """Yield whether the caller has the lock to encode a clip; otherwise another process encodes it.

    The lock is released with the block, or when its process dies. On a file system without locks
    every caller encodes: the work is done twice, without other effects.
    """
    if sys.platform == "win32":
        yield True
        return
    import fcntl

    lock = _path(folder, checkpoint).with_suffix(".lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield True  # a read-only folder, or a deleted one
        return
    try:
        is_ours = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_ours = False
        except OSError:
            pass  # a file system without locks
        yield is_ours
        if is_ours:
            lock.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _as_npz(prompt: VoicePrompt) -> bytes:
    arrays = {"speaker_embedding": np.asarray(prompt.speaker_embedding, np.float32)}
    if prompt.codes is not None:
        arrays["codes"] = np.asarray(prompt.codes, np.int64)
    buffer = BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _path(folder: Path, checkpoint: str) -> Path:
    name = quote(checkpoint, safe="")
    if len(name) > _MAX_NAME_CHARS:
        name = sha256(checkpoint.encode("utf-8")).hexdigest()
    return folder / "prompts" / f"{name}.npz"
