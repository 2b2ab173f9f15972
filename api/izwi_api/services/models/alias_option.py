"""The option `--alias`, without what serving models needs: the command line reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from izwi.errors import InvalidRequest

OPTION = "--alias"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


def parse_aliases(entries: Iterable[str]) -> dict[str, str]:
    """Read `ALIAS=NAME` entries.

    Raises:
        InvalidRequest: An entry is not of this form, or an alias is given twice.
    """
    aliases: dict[str, str] = {}
    for entry in entries:
        alias, equals, name = entry.partition("=")
        if not (equals and name and _NAME.fullmatch(alias)):
            raise InvalidRequest(
                f"{OPTION} must be like 'tts-1=izwi-tiny-tts', got {entry!r}", param=OPTION
            )
        if aliases.setdefault(alias, name) != name:
            raise InvalidRequest(f"{OPTION} {alias!r} is given twice", param=OPTION)
    return aliases
