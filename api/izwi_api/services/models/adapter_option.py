"""The option `--adapter`, without what serving models needs: the command line reads it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from izwi.errors import InvalidRequest

OPTION = "--adapter"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}:[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def parse_adapters(entries: Iterable[str]) -> dict[str, Path]:
    """Read `MODEL:NAME=FOLDER` entries.

    Raises:
        InvalidRequest: An entry is not of this form, its folder has no adapter, or a name is given
            twice.
    """
    from izwi.checkpoints.adapter_folder import is_adapter  # imports what engines need

    adapters: dict[str, Path] = {}
    for entry in entries:
        name, equals, place = entry.partition("=")
        folder = Path(place).expanduser().absolute()
        if not (equals and place and _NAME.fullmatch(name)):
            raise InvalidRequest(
                f"{OPTION} must be like 'Qwen/Qwen3-0.6B:poet=./poet', got {entry!r}", param=OPTION
            )
        if not is_adapter(folder):
            raise InvalidRequest(
                f"{OPTION} {entry!r}: {folder} has no adapter_config.json", param=OPTION
            )
        if adapters.setdefault(name, folder) != folder:
            raise InvalidRequest(f"{OPTION} {name!r} is given twice", param=OPTION)
    return adapters


def check_adapters(adapters: Mapping[str, Path], models: Collection[str]) -> None:
    """Check that adapters are of served models. Raises InvalidRequest."""
    for name in adapters:
        base = name.rpartition(":")[0]
        if base not in models:
            raise InvalidRequest(
                f"{OPTION} {name!r}: no model is called {base!r}; they are {', '.join(models)}",
                param=OPTION,
            )
