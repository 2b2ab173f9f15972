"""Read the manifests of voices and consents, which people copy, edit and damage.

A manifest has one of the known shapes or it is refused, so that nothing that follows meets a value
of another kind.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from izwi_api.voices.files import is_id, is_name, new_id

# The format of a manifest. The index has the same number.
FORMAT = 1
MAX_BYTES = 256 * 1024
# A manifest may have been copied by hand: the file that it names must be in its own folder.
_FILE_NAME = re.compile(r"[a-z]{1,16}\.[a-z0-9]{1,5}", re.ASCII)
_LEGACY_SAMPLE = "reference.wav"

_Seconds = Annotated[int, Meta(ge=0, lt=1 << 53)]  # every reader of JSON knows such a number
_Label = Annotated[str, Meta(min_length=1, max_length=256)]


class _Format(Struct):
    format: int | None = None


class _Voice(Struct):
    id: str
    name: str
    created_at: _Seconds
    text: str | None
    prompt: str | None
    consent: str | None
    sample: str


class _LegacyVoice(Struct):
    """A voice of izwi 0.1: a folder with the voice's name that contains the decoded clip."""

    name: str
    created_at: _Seconds
    text: str | None


class _Consent(Struct):
    id: str
    name: _Label
    language: _Label
    created_at: _Seconds
    recording: str


class ArchivedVoice(Struct):
    """The manifest in an archive of a voice; the fields are those of `StoredVoice`."""

    format: int
    name: str
    text: str | None
    prompt: str | None
    consent: str | None


T = TypeVar("T")


def decode_manifest(content: bytes, kind: type[T]) -> T:
    """Read JSON of a known shape.

    Raises:
        ValueError: It has another shape, is nested too deeply, or has text that is not Unicode.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_manifest(content: bytes, table: str) -> dict[str, Any]:
    """Return the fields of a folder's manifest.

    Args:
        content: The file's bytes.
        table: "voices" or "consents".

    Raises:
        ValueError: The manifest cannot be used.
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    version = decode_manifest(content, _Format).format
    if version is None and table == "voices":
        voice = decode_manifest(content, _LegacyVoice)
        fields = msgspec.structs.asdict(voice)
        fields |= {"id": new_id("voice"), "sample": _LEGACY_SAMPLE, "prompt": None, "consent": None}
    elif version == FORMAT:
        kind: type[Struct] = _Voice if table == "voices" else _Consent
        fields = msgspec.structs.asdict(decode_manifest(content, kind))
    else:
        raise ValueError(f"its format is {version!r}")
    file_name: str = fields["sample" if table == "voices" else "recording"]
    if not (is_id(fields["id"]) and _FILE_NAME.fullmatch(file_name)):
        raise ValueError("its id or its file is not one of ours")
    if table == "voices" and not is_name(fields["name"]):
        raise ValueError("its name cannot be a voice's")
    return fields
