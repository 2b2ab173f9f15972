"""The file of `izwi serve --warm` and `izwi ctl warm`: what requests will share."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from izwi.errors import InvalidRequest


class WarmPrompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The system prompt of conversations with a chat model."""

    model: str
    system: Annotated[str, msgspec.Meta(min_length=1)]


class WarmVoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A voice of a speech model, also a cloned one: its clip is then encoded."""

    model: str
    name: Annotated[str, msgspec.Meta(min_length=1)]


class WarmFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What engines compute when they start."""

    prompt: tuple[WarmPrompt, ...] = ()
    voice: tuple[WarmVoice, ...] = ()


def read_warm_file(path: Path) -> WarmFile:
    """Read a TOML file with tables `[[prompt]]` and `[[voice]]`.

    Raises:
        InvalidRequest: It is not readable, or has something else.
    """
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(fields, WarmFile)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InvalidRequest(f"--warm {path}: {error}", param="warm") from error
