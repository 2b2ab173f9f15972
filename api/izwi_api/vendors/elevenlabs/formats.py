"""What ElevenLabs' endpoints share: names of models and of audio formats, settings of voices."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field

from izwi.errors import InvalidRequest
from izwi_api.vendors.audio_formats import AudioFormat

PREFIX = "/elevenlabs"
# eleven_multilingual_v2, eleven_flash_v2_5, eleven_v3 and the like
MODELS = re.compile(r"eleven_[a-z0-9_]+")
DEFAULT_FORMAT = "mp3_44100_128"
_FORMAT = re.compile(r"(mp3|opus|pcm|wav|ulaw|alaw)_(\d{4,6})(?:_\d+)?")
_NAMES = {"ulaw": "mulaw"}
_LEAST_RATE, _MOST_RATE = 8000, 48_000


def parse_format(name: str) -> AudioFormat:
    """Return the audio format that ElevenLabs calls CODEC_RATE or CODEC_RATE_BITRATE.

    MP3 and Opus have the model's own sample rate, which their header says.

    Raises:
        InvalidRequest: There is no such format.
    """
    match = _FORMAT.fullmatch(name)
    if match is None or not _LEAST_RATE <= int(match[2]) <= _MOST_RATE:
        raise InvalidRequest(
            f"output_format must be like mp3_44100_128, pcm_16000, wav_24000, opus_48000_64, "
            f"ulaw_8000 or alaw_8000, got {name[:64]!r}",
            param="output_format",
        )
    return AudioFormat(_NAMES.get(match[1], match[1]), int(match[2]))


class VoiceSettings(BaseModel):
    """How a voice speaks. Only the speed has an effect here."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    speed: float = Field(default=1.0, ge=0.7, le=1.2)
