"""Checkpoints of this machine that were given a name: folders and GGUF files.

Each is a link in izwi's home: to a checkpoint's folder, or to that which was made of a GGUF file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from izwi.checkpoints.adapter_folder import CONFIG
from izwi.checkpoints.gguf_folder import folder_name, write_folder
from izwi.errors import CheckpointError, InvalidRequest
from izwi.model.family import Family

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


def home_folder() -> Path:
    """Return izwi's home: IZWI_HOME, or ~/.izwi."""
    given = os.environ.get("IZWI_HOME")
    return Path(given).expanduser() if given else Path.home() / ".izwi"


def added() -> dict[str, Path]:
    """Return the folders of added checkpoints by name."""
    return _having("config.json")


def added_adapters() -> dict[str, Path]:
    """Return the folders of added adapters by name."""
    return _having(CONFIG)


def _having(file: str) -> dict[str, Path]:
    models = home_folder() / "models"
    try:
        return {entry.name: entry for entry in sorted(models.iterdir()) if (entry / file).is_file()}
    except OSError:
        return {}


def is_gguf(path: Path) -> bool:
    """Whether a path is that of a GGUF file."""
    return path.suffix.lower() == ".gguf" and path.is_file()


def folder_of_gguf(path: Path, families: Iterable[Family]) -> Path:
    """Return the folder of a GGUF file, made of it once. Raises CheckpointError."""
    return write_folder(path, home_folder() / "gguf" / folder_name(path), families)


def folder_of(path: Path, families: Iterable[Family]) -> Path:
    """Return the folder of a checkpoint that is a folder or a GGUF file. Raises CheckpointError."""
    if path.is_dir():
        return path.resolve()
    if not is_gguf(path):
        raise CheckpointError(f"{path} is neither a checkpoint's folder nor a GGUF file")
    return folder_of_gguf(path, families)


def default_name(path: Path) -> str:
    """Return the name that a checkpoint gets without one: its file's or folder's."""
    return path.stem if is_gguf(path) else path.resolve().name


def check_name(name: str) -> str:
    """Return a name of a checkpoint.

    Raises:
        InvalidRequest: It could not be told from a path or a hub id.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"name must have only letters, digits, '.', '_' and '-', got {name!r}", param="name"
        )
    return name


def add(path: Path, name: str, families: Iterable[Family]) -> Path:
    """Give a checkpoint a name, under which `--model` finds it. An added one is replaced.

    Args:
        path: A folder, or a GGUF file; it stays where it is.
        name: The name.
        families: Families that may load it.

    Returns:
        The folder to load it from.

    Raises:
        InvalidRequest: The name has other characters than letters, digits, ".", "_" and "-".
        CheckpointError: There is no such file or folder, or it is broken.
    """
    place = home_folder() / "models" / check_name(name)
    made = folder_of(path, families)
    place.parent.mkdir(parents=True, exist_ok=True)
    remove(name)
    place.symlink_to(made, target_is_directory=True)
    return place


def remove(name: str) -> bool:
    """Forget an added checkpoint; its files stay. Returns whether there was one."""
    place = home_folder() / "models" / check_name(name)
    if not place.is_symlink():
        return False
    place.unlink()
    return True
