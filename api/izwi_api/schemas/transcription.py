"""The forms of POST /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from izwi.errors import InvalidRequest
from izwi_api.schemas.form import Form
from izwi_api.schemas.known_speakers import SpeakerSetting
from izwi_api.schemas.languages import LanguageName

_LISTS = (
    *("known_speaker_names", "known_speaker_references"),
    *("languages", "keywords"),
    *("timestamp_granularities", "include"),
)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def _boolean(value: object) -> object:
    return _BOOLEANS.get(value.lower(), value) if isinstance(value, str) else value


def _number(value: object) -> object:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _whole(value: object) -> object:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


class ServerVad(BaseModel):
    """Where speech begins and ends, if speakers are told apart.

    Other audio is cut in its pauses anyway; the values are then validated and ignored.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["server_vad"]
    prefix_padding_ms: int = Field(default=300, ge=0, le=10_000)
    silence_duration_ms: int = Field(default=200, ge=0, le=10_000)
    threshold: float = Field(default=0.5, ge=0.0, le=1.0)


class TranscriptionForm(BaseModel):
    """The fields of a transcription request, without its file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str
    language: LanguageName | None = None
    languages: list[LanguageName] = Field(default=[], max_length=64)
    keywords: list[str] = Field(default=[], max_length=256)
    prompt: str = Field(default="", max_length=4096)
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"] = "json"
    temperature: Annotated[float, BeforeValidator(_number), Field(ge=0.0, le=1.0)] = 0.0
    speakers: Annotated[bool, BeforeValidator(_boolean)] = False
    speaker_threshold: Annotated[float, BeforeValidator(_number), Field(ge=-1.0, le=1.0)] | None = (
        None
    )
    known_speaker_names: list[Annotated[str, Field(min_length=1, max_length=64)]] = Field(
        default=[], max_length=4
    )
    known_speaker_references: list[str] = Field(default=[], max_length=4)
    timestamp_granularities: list[Literal["segment", "word", "cue"]] = []
    include: list[Literal["logprobs"]] = []
    stream: Annotated[bool, BeforeValidator(_boolean)] = False
    chunking_strategy: Literal["auto"] | ServerVad | None = None
    vad_filter: Annotated[bool, BeforeValidator(_boolean)] = True
    max_new_tokens: Annotated[int, BeforeValidator(_whole), Field(ge=1, le=65_536)] | None = None

    @field_validator("timestamp_granularities")
    @classmethod
    def _only_verbose(cls, value: list[str], info: ValidationInfo) -> list[str]:
        if value and info.data.get("response_format") != "verbose_json":
            raise ValueError("needs response_format verbose_json")
        return value

    @field_validator("include")
    @classmethod
    def _only_json(cls, value: list[str], info: ValidationInfo) -> list[str]:
        if value and info.data.get("response_format") not in ("json", "verbose_json"):
            raise ValueError("needs response_format json or verbose_json")
        return value

    @model_validator(mode="after")
    def _known_in_pairs(self) -> TranscriptionForm:
        names, references = self.known_speaker_names, self.known_speaker_references
        SpeakerSetting(names, references)  # checks that they are pairs
        if names and not self.with_speakers:
            raise InvalidRequest(
                "known speakers need response_format diarized_json", param="known_speaker_names"
            )
        if self.speakers and (self.response_format == "json" or self.with_words or self.with_cues):
            raise InvalidRequest(
                "speakers needs response_format diarized_json, verbose_json, srt, vtt or text, "
                "without times of words or cues",
                param="speakers",
            )
        return self

    @property
    def with_speakers(self) -> bool:
        """Return whether speakers are told apart."""
        return self.speakers or self.response_format == "diarized_json"

    @property
    def forced_language(self) -> str | None:
        """Return the language to assume, or None to detect it.

        With several candidates none is assumed: the model detects any language that it knows, and
        the response reports it.
        """
        return self.language or (self.languages[0] if len(self.languages) == 1 else None)

    @property
    def with_logprobs(self) -> bool:
        """Return whether log probabilities of tokens are requested."""
        return "logprobs" in self.include

    @property
    def with_words(self) -> bool:
        """Return whether word timestamps are requested."""
        return "word" in self.timestamp_granularities

    @property
    def with_cues(self) -> bool:
        """Return whether subtitles are requested beside the text."""
        return "cue" in self.timestamp_granularities

    @property
    def is_subtitle(self) -> bool:
        """Return whether the response is a subtitle file."""
        return self.response_format in ("srt", "vtt")

    @property
    def context(self) -> str:
        """Return the text context for the model: the prompt and the expected words."""
        return " ".join(filter(None, [self.prompt, ", ".join(self.keywords)]))

    def ignored(self, *, follows_context: bool) -> list[str]:
        """Return the fields that have no effect, by whether the model follows the context."""
        given = {"prompt": self.prompt.strip(), "keywords": any(map(str.strip, self.keywords))}
        return [] if follows_context else [name for name, is_given in given.items() if is_given]


def parse_form(form: Form) -> TranscriptionForm:
    """Parse a form: lists with or without brackets, a chunking strategy in brackets or as JSON.

    Raises:
        ValidationError: A field is unknown, missing or has a wrong value.
        InvalidRequest: A field that is not a list was given twice.
    """
    values: dict[str, object] = {}
    strategy: dict[str, object] = {}
    for name, entries in form.fields.items():
        if name in _LISTS:
            values[name] = entries
            continue
        value = form.value(name)
        if name.startswith("chunking_strategy[") and name.endswith("]"):
            strategy[name[len("chunking_strategy[") : -1]] = _number(value)
        elif name == "chunking_strategy" and value.startswith("{"):
            strategy.update(_json_object(value))
        elif value or name == "model":
            values[name] = value
    if strategy:
        values["chunking_strategy"] = strategy
    return TranscriptionForm.model_validate(values)


def _json_object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("it is not valid JSON", param="chunking_strategy") from error
    assert isinstance(value, dict)  # the text starts with a brace
    return value


class TranslationForm(BaseModel):
    """The fields of a translation request, without its file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str
    prompt: str = Field(default="", max_length=4096)
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: Annotated[float, BeforeValidator(_number), Field(ge=0.0, le=1.0)] = 0.0


def parse_translation(form: Form) -> TranslationForm:
    """Parse the fields of a translation; an empty one selects the default.

    Raises:
        ValidationError: A field is unknown, missing or has a wrong value.
        InvalidRequest: A field was given twice.
    """
    return TranslationForm.model_validate(form.values(empty="model"))
