"""The lines of a recording: a request, complete enough to run it again, and its output.

A recording is a file of JSON lines, one ended request each:

    version       1
    task          "speech", "transcription" or "chat"
    model         the name under which it was served
    fingerprint   of the checkpoint behind that name
    platform      what it was computed on; only there are the last bits of the sound promised
    ask           the fields of SpeechInput, TranscriptionInput or ChatInput; a voice is a name,
                  {"kind": "clip", samples, text} or {"kind": "encoded", speaker_embedding, codes,
                  text}
    request       what the ask was prepared to: seed, sampling, limits, length of the prompt
    entries       the log: (codebooks,) ids each
    reason        "stop", "length" or "aborted", which holds the log as far as it went
    num_samples   of the sound, 0 where there is none
    pcm_sha256    of the sound as little-endian 16-bit samples, "" where there is none
    text          what a transcription, or what is said in an answer, reads as

What has its default is left out. An array is {"dtype", "shape", "data"}: base64 of zlib of its
little-endian bytes in planes, all first bytes of the items, then all second bytes, and so on.

A recording holds callers' texts and voices, so only its owner may read the file. Requests whose
text was written while they ran, and those that only encode, are not recorded.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from izwi.chat import ChatInput
from izwi.errors import InvalidRequest
from izwi.inputs import ReferenceClip, SpeechInput, TextMode, TranscriptionInput, VoicePrompt
from izwi.request import Reason, Request, SamplingParams

logger = logging.getLogger(__name__)

VERSION = 1


class PackedArray(Struct, frozen=True):
    """An array as it stands in a line."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> PackedArray:
        """Pack an array of numbers, bit for bit."""
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        # Neighbours in sound share their high bytes: side by side these compress well.
        planes = np.frombuffer(little.tobytes(), np.uint8).reshape(-1, little.itemsize).T
        return cls(array.dtype.name, array.shape, zlib.compress(planes.tobytes()))

    def unpack(self) -> npt.NDArray[Any]:
        """Return the array. Raises InvalidRequest where it is none."""
        try:
            dtype = np.dtype(self.dtype)
            size = math.prod(self.shape) * dtype.itemsize
            planes = zlib.decompressobj().decompress(self.data, size + 1)
            if dtype.kind not in "fiu" or min(self.shape, default=0) < 0 or len(planes) != size:
                raise ValueError("its data does not fill its shape")
            items = np.frombuffer(planes, np.uint8).reshape(dtype.itemsize, -1).T
            values = np.frombuffer(items.tobytes(), dtype.newbyteorder("<"))
        except (TypeError, ValueError, zlib.error) as error:
            raise InvalidRequest(f"a packed array cannot be read: {error}") from error
        return values.astype(dtype).reshape(self.shape)


class Clip(Struct, frozen=True, tag_field="kind", tag="clip", omit_defaults=True):
    """A `ReferenceClip`."""

    samples: PackedArray
    text: str | None = None


class EncodedVoice(Struct, frozen=True, tag_field="kind", tag="encoded", omit_defaults=True):
    """A `VoicePrompt`."""

    speaker_embedding: PackedArray
    codes: PackedArray | None = None
    text: str | None = None


class SpeechAsk(Struct, frozen=True, omit_defaults=True):
    """A `SpeechInput`."""

    text: str
    voice: str | Clip | EncodedVoice | None = None
    language: str | None = None
    instruct: str | None = None
    text_mode: TextMode | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    max_new_tokens: int | None = None

    @classmethod
    def of(cls, ask: SpeechInput) -> SpeechAsk:
        """Pack what was asked."""
        return cls(**{**_values(ask), "voice": _packed_voice(ask.voice)})

    def unpack(self) -> SpeechInput:
        """Return what was asked. Raises InvalidRequest if an array cannot be read."""
        return SpeechInput(**{**msgspec.structs.asdict(self), "voice": _voice(self.voice)})


class TranscriptionAsk(Struct, frozen=True, omit_defaults=True):
    """A `TranscriptionInput`."""

    samples: PackedArray
    language: str | None = None
    context: str = ""
    temperature: float = 0.0
    seed: int = 0
    max_new_tokens: int | None = None
    logprobs: bool = False

    @classmethod
    def of(cls, ask: TranscriptionInput) -> TranscriptionAsk:
        """Pack what was asked."""
        return cls(**{**_values(ask), "samples": PackedArray.of(ask.samples[:])})

    def unpack(self) -> TranscriptionInput:
        """Return what was asked. Raises InvalidRequest if an array cannot be read."""
        return TranscriptionInput(
            **{**msgspec.structs.asdict(self), "samples": self.samples.unpack()}
        )


class Prepared(Struct, frozen=True, omit_defaults=True):
    """What an ask was prepared to, but for the prompt itself: its length stands for it."""

    num_positions: int
    seed: int = 0
    sampling: SamplingParams = SamplingParams()
    codebook_sampling: SamplingParams = SamplingParams()
    max_entries: int = 1
    min_entries: int = 0
    stop_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, request: Request) -> Prepared:
        """Take it from a request."""
        names = (name for name in cls.__struct_fields__ if name != "num_positions")
        rest = {name: getattr(request, name) for name in names}
        return cls(request.prompt.num_positions, **rest)


class _Line(Struct, frozen=True, kw_only=True, tag_field="task", omit_defaults=True):
    """What lines of every task have."""

    version: int
    model: str
    fingerprint: str
    platform: str = ""
    request: Prepared
    entries: tuple[tuple[int, ...], ...]
    reason: Reason


class SpeechLine(_Line, frozen=True, kw_only=True, tag="speech"):
    """One request for speech and what it gave."""

    ask: SpeechAsk
    num_samples: int = 0
    pcm_sha256: str = ""


class TranscriptionLine(_Line, frozen=True, kw_only=True, tag="transcription"):
    """One request for a transcription and what it gave."""

    ask: TranscriptionAsk
    text: str = ""


class ChatLine(_Line, frozen=True, kw_only=True, tag="chat"):
    """One conversation and its answer."""

    ask: ChatInput
    text: str = ""


Line = SpeechLine | TranscriptionLine | ChatLine


class _Head(Struct):
    version: int


def read_recording(path: Path) -> list[Line]:
    """Read a trace.

    A last line without an end is left out: its writer was killed.

    Raises:
        OSError: The file cannot be read.
        InvalidRequest: A line is no trace, or one of another version; it is named.
    """
    lines: list[Line] = []
    with path.open("rb") as file:
        for number, content in enumerate(file, start=1):
            if not content.endswith(b"\n"):
                logger.warning("%s: line %d is not complete and was left out", path, number)
                break
            try:
                version = msgspec.json.decode(content, type=_Head).version
                if version != VERSION:
                    raise InvalidRequest(
                        f"{path}: line {number} is of version {version}, known is {VERSION}"
                    )
                lines.append(msgspec.json.decode(content, type=Line))
            except msgspec.MsgspecError as error:
                raise InvalidRequest(f"{path}: line {number} is no trace: {error}") from error
    return lines


def _values(ask: SpeechInput | TranscriptionInput) -> Mapping[str, Any]:
    """Fields by name. One that a line does not know fails there, and is not lost in silence."""
    return {one.name: getattr(ask, one.name) for one in fields(ask)}


def _packed_voice(
    voice: str | VoicePrompt | ReferenceClip | None,
) -> str | Clip | EncodedVoice | None:
    if isinstance(voice, ReferenceClip):
        return Clip(PackedArray.of(voice.samples), voice.text)
    if isinstance(voice, VoicePrompt):
        codes = None if voice.codes is None else PackedArray.of(voice.codes)
        return EncodedVoice(PackedArray.of(voice.speaker_embedding), codes, voice.text)
    return voice


def _voice(packed: str | Clip | EncodedVoice | None) -> str | VoicePrompt | ReferenceClip | None:
    if isinstance(packed, Clip):
        return ReferenceClip(packed.samples.unpack(), packed.text)
    if isinstance(packed, EncodedVoice):
        codes = None if packed.codes is None else packed.codes.unpack()
        return VoicePrompt(packed.speaker_embedding.unpack(), codes, packed.text)
    return packed
