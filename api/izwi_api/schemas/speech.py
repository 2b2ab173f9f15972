"""The body of POST /v1/audio/speech: OpenAI's keys and ours. An unknown key is an error."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from izwi.audio.limits import MAX_SPEED, MIN_SPEED
from izwi_api.schemas.languages import LanguageName

MAX_PRONUNCIATIONS = 100
MAX_WORD_CHARS, MAX_SPELLING_CHARS = 60, 200
_INT64_MAX = 2**63 - 1
_VISIBLE = r"[^\s\x1c-\x1f\x85]"  # the characters listed here are white space only in Python
_Word = Annotated[str, StringConstraints(min_length=1, max_length=MAX_WORD_CHARS, pattern=_VISIBLE)]
_Spelling = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_SPELLING_CHARS, pattern=_VISIBLE)
]

_TEXT = {"type": "string", "maxLength": 4096}
_VOICE = {"type": "string", "minLength": 1}
# For OpenAPI: checks made elsewhere, and alternative spellings. 4096 is a setting's default. The
# separators listed are white space in Python but not in ECMAScript's patterns.
HINTS: dict[str, dict[str, object]] = {
    "input": {"minLength": 1, "maxLength": 4096, "pattern": r"[^\s\x1c-\x1f\x85]"},
    "instructions": {"anyOf": [_TEXT, {"type": "null"}]},
    "ref_text": {"anyOf": [_TEXT, {"type": "null"}]},
    "voice": {
        "anyOf": [
            _VOICE,
            {
                "type": "object",
                "properties": {"id": _VOICE},
                "required": ["id"],
                "additionalProperties": False,
            },
            {"type": "null"},
        ]
    },
}


def _voice_name(value: object) -> object:
    """Replace `{"id": "..."}` by its id."""
    if isinstance(value, dict) and value.keys() == {"id"}:
        return value["id"]
    return value


def _boolean(value: object) -> object:
    """Refuse 0 and 1, which equal the booleans."""
    if not isinstance(value, bool):
        raise ValueError("must be a boolean")
    return value


OnlyTrue = Annotated[Literal[True], BeforeValidator(_boolean)]
OnlyFalse = Annotated[Literal[False], BeforeValidator(_boolean)]


class SpeechBody(BaseModel):
    """The request body."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str
    input: str
    voice: Annotated[str, BeforeValidator(_voice_name), Field(min_length=1)] | None = None
    instructions: str | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    speed: float = Field(default=1.0, ge=MIN_SPEED, le=MAX_SPEED)
    stream_format: Literal["audio", "sse"] = "audio"
    stream: bool | None = Field(
        default=None,
        description="taken for clients of other servers; audio is sent while it is made with "
        "either value, in stream_format",
    )

    # Extensions; the SDK sends them through `extra_body`.
    language: LanguageName | None = None
    pronunciations: dict[_Word, _Spelling] | None = Field(
        default=None,
        max_length=MAX_PRONUNCIATIONS,
        description="by word or words, whatever their case: what is spoken instead",
        examples=[{"izwi": "ee-zwee"}],
    )
    seed: int = Field(default=0, ge=-_INT64_MAX - 1, le=_INT64_MAX)
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    top_k: int | None = Field(default=None, ge=0, le=100_000)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    text_mode: Literal["full", "streaming"] | None = None
    ref_audio: str | None = Field(
        default=None,
        description="a clip in base64 or as a data: URL; or its address, at a host that the server "
        "was started to fetch from (izwi serve --reference-host)",
    )
    ref_text: str | None = None
    x_vector_only: bool = False
    max_new_tokens: int | None = Field(default=None, ge=1, le=65_536)
    word_timestamps: bool = Field(default=False, description="needs stream_format sse")
    include_codes: bool = Field(
        default=False,
        description="codes of the codec, in events of their own; needs stream_format sse",
    )
