"""Export and import a voice as one file: a ZIP of its clip and metadata.

voice.json      format, name, text, prompt, consent: as in docs/voices.md
sample.<kind>   the clip as uploaded
"""

from __future__ import annotations

import json
import lzma
import struct
import zipfile
import zlib
from dataclasses import dataclass
from io import BytesIO

from izwi.errors import InvalidRequest, TooLarge
from izwi_api.voices.files import audio_kind, is_name
from izwi_api.voices.manifest import FORMAT, MAX_BYTES, ArchivedVoice, decode_manifest

_MANIFEST = "voice.json"
# What `zipfile` and the decompressors raise for damaged or unsupported archives.
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(OSError, EOFError, ValueError, KeyError, RuntimeError, OverflowError, MemoryError),
)


@dataclass(frozen=True, slots=True)
class VoiceArchive:
    """The metadata in an archive; the fields are those of `StoredVoice`."""

    name: str
    sample: bytes
    text: str | None = None
    prompt: str | None = None
    consent: str | None = None


def pack_voice(voice: VoiceArchive) -> bytes:
    """Return an archive's bytes."""
    fields = {
        "format": FORMAT,
        "name": voice.name,
        "text": voice.text,
        "prompt": voice.prompt,
        "consent": voice.consent,
    }
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(_MANIFEST, json.dumps(fields, ensure_ascii=False, indent=1))
        archive.writestr(f"sample{audio_kind(voice.sample)[0]}", voice.sample)
    return buffer.getvalue()


def unpack_voice(content: bytes, limit_bytes: int) -> VoiceArchive:
    """Read an archive; nothing is written to disk.

    Args:
        content: The archive's bytes.
        limit_bytes: Maximum size of its clip, unpacked.

    Raises:
        InvalidRequest: It is no archive of a voice.
        TooLarge: The clip is over the limit.
    """
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            voice = decode_manifest(_member(archive, _MANIFEST, MAX_BYTES), ArchivedVoice)
            (sample_name,) = [name for name in archive.namelist() if name.startswith("sample.")]
            sample = _member(archive, sample_name, limit_bytes)
        if voice.format != FORMAT or not is_name(voice.name):
            raise ValueError("its format or its name cannot be used")
    except TooLarge:
        raise
    except _DAMAGED as error:
        raise InvalidRequest(f"this is not an exported voice: {error}", param="file") from error
    return VoiceArchive(voice.name, sample, voice.text, voice.prompt, voice.consent)


def _member(archive: zipfile.ZipFile, name: str, limit_bytes: int) -> bytes:
    """Unpack one file without trusting the sizes in the archive."""
    with archive.open(name) as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise TooLarge(f"{name[:64]} is larger than {limit_bytes} bytes", param="file")
    return content
