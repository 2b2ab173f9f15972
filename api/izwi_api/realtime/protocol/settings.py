"""The session object: its fields and defaults, and how updates merge into it.

An update is merged key by key: null clears, lists are replaced. The result is validated as a whole,
so an invalid value changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
from msgspec import Meta, Struct

from izwi.errors import InvalidRequest
from izwi_api.realtime.protocol.errors import EventError, describe
from izwi_api.realtime.protocol.formats import FORMATS, WireFormat
from izwi_api.realtime.turns.rules import Detection, Eagerness, SemanticVad, ServerVad
from izwi_api.schemas.known_speakers import (
    KnownNames,
    KnownReferences,
    SpeakerSetting,
    asked_speakers,
)
from izwi_api.settings import LEAST_LEAD_MS, MOST_LEAD_MS, VadName, check_vad, is_lead_ms

_MAX_TEXT = 64 << 10
_Text = Annotated[str, Meta(max_length=_MAX_TEXT)]
# What `truncation: "auto"` retains.
_AUTO_RATIO = 0.8
_Include = list[Literal["item.input_audio_transcription.logprobs"]]


class _Part(Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of the session object."""


class PcmFormat(_Part, tag_field="type", tag="audio/pcm"):
    """16-bit PCM, mono, little-endian."""

    rate: Literal[24000] = 24000


class PcmuFormat(_Part, tag_field="type", tag="audio/pcmu"):
    """G.711 mu-law."""


class PcmaFormat(_Part, tag_field="type", tag="audio/pcma"):
    """G.711 A-law."""


AudioFormat = PcmFormat | PcmuFormat | PcmaFormat


class Transcription(_Part, omit_defaults=True):
    """How the user's audio is transcribed.

    Unset fields are not sent: pipecat knows three of these keys and rejects others, even null.

    The last four are extensions, named as those of a file: who speaks, in sessions that only
    transcribe.
    """

    model: str | None = None
    language: str | None = None
    languages: list[str] | None = None
    keywords: list[str] | None = None
    prompt: _Text | None = None
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None
    speakers: bool = False
    speaker_threshold: Annotated[float, Meta(ge=-1.0, le=1.0)] | None = None
    known_speaker_names: KnownNames = []
    known_speaker_references: KnownReferences = []

    @property
    def context(self) -> str:
        """Return the text context for the model: the prompt and the expected words."""
        return " ".join(filter(None, [self.prompt, ", ".join(self.keywords or ())]))

    @property
    def speaker_setting(self) -> SpeakerSetting | None:
        """Return how speakers are told apart, or None. Raises InvalidRequest."""
        setting = SpeakerSetting(
            self.known_speaker_names, self.known_speaker_references, self.speaker_threshold
        )
        return asked_speakers(is_asked=self.speakers, setting=setting)


class NoiseReduction(_Part):
    """How near the microphone is. `strength` has no effect."""

    type: Literal["near_field", "far_field"] | None = None
    strength: float | None = None


_Ms = Annotated[int, Meta(ge=0, le=60_000)]


class _TurnDetection(_Part):
    """When turns begin and end.

    `vad` is an extension: what detects speech. None uses the server's.
    """

    vad: VadName | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if the detector is not installed."""
        if self.vad is not None:
            try:
                check_vad(self.vad, "vad")
            except InvalidRequest as missing:
                raise ValueError(str(missing)) from missing


class ServerVadSettings(_TurnDetection, tag_field="type", tag="server_vad"):
    """See `turn_rules.ServerVad`."""

    threshold: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.5
    prefix_padding_ms: _Ms = 300
    silence_duration_ms: _Ms = 500
    idle_timeout_ms: Annotated[int, Meta(ge=1000, le=600_000)] | None = None
    create_response: bool | None = True
    interrupt_response: bool | None = True


class SemanticVadSettings(_TurnDetection, tag_field="type", tag="semantic_vad"):
    """See `turn_rules.SemanticVad`."""

    eagerness: Eagerness = "auto"
    create_response: bool | None = True
    interrupt_response: bool | None = True


class AudioInput(_Part):
    """The user's audio."""

    format: AudioFormat = msgspec.field(default_factory=PcmFormat)
    transcription: Transcription | None = None
    noise_reduction: NoiseReduction | None = None
    turn_detection: ServerVadSettings | SemanticVadSettings | None = msgspec.field(
        default_factory=ServerVadSettings
    )


class AudioOutput(_Part):
    """The answers' audio.

    `lead_ms` is an extension: see `playback.PlaybackClock`. 0 sends audio as it is generated, and
    None uses the server's lead.
    """

    format: AudioFormat = msgspec.field(default_factory=PcmFormat)
    voice: str | None = None
    speed: Annotated[float, Meta(ge=0.25, le=1.5)] = 1.0
    lead_ms: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if the lead is not allowed."""
        if self.lead_ms is not None and not is_lead_ms(self.lead_ms):
            raise ValueError(f"lead_ms must be 0 or from {LEAST_LEAD_MS} to {MOST_LEAD_MS}")


class Audio(_Part):
    """Audio in both directions."""

    input: AudioInput = msgspec.field(default_factory=AudioInput)
    output: AudioOutput = msgspec.field(default_factory=AudioOutput)


class TranscriptionAudio(_Part):
    """Audio of a session that only transcribes."""

    input: AudioInput = msgspec.field(default_factory=AudioInput)


class FunctionTool(_Part, tag_field="type", tag="function"):
    """A function that the model may call."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    description: _Text | None = None
    parameters: dict[str, Any] | None = None


class FunctionChoice(_Part, tag_field="type", tag="function"):
    """The one function to call."""

    name: str


class RetentionRatio(_Part, tag_field="type", tag="retention_ratio"):
    """The share of a conversation that remains when it outgrows the model's context."""

    retention_ratio: Annotated[float, Meta(ge=0.0, le=1.0)] = _AUTO_RATIO
    token_limits: dict[str, Any] | None = None  # accepted without effect


ToolChoice = Literal["auto", "none", "required"] | FunctionChoice
MaxTokens = Annotated[int, Meta(ge=1, le=4096)] | Literal["inf"]


class RealtimeSettings(_Part, tag_field="type", tag="realtime"):
    """Settings of a conversation.

    `seed` is an extension: with it, the same conversation gets the same answers. None draws one for
    each answer.
    """

    id: str = ""
    object: Literal["realtime.session"] = "realtime.session"
    model: str = ""
    output_modalities: Annotated[
        list[Literal["text", "audio"]], Meta(min_length=1, max_length=1)
    ] = msgspec.field(default_factory=lambda: ["audio"])
    instructions: _Text = ""
    tools: list[FunctionTool] = []
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool | None = None
    max_output_tokens: MaxTokens = "inf"
    reasoning: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | RetentionRatio = "auto"
    tracing: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    include: _Include | None = None
    expires_at: int = 0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    audio: Audio = msgspec.field(default_factory=Audio)


class TranscriptionSettings(_Part, tag_field="type", tag="transcription"):
    """Settings of a session that only transcribes."""

    id: str = ""
    object: Literal["realtime.transcription_session"] = "realtime.transcription_session"
    include: _Include | None = None
    expires_at: int = 0
    audio: TranscriptionAudio = msgspec.field(default_factory=TranscriptionAudio)


Settings = RealtimeSettings | TranscriptionSettings
# Fields that a client cannot change.
_FIXED = ("id", "object", "expires_at", "model")
# Objects whose keys depend on their type: a new type replaces the whole object.
_TYPED = ("format", "turn_detection")
# Null selects the default.
_NULL_IS_DEFAULT = ("tools", "instructions", "tool_choice", "max_output_tokens", "truncation",
                    "output_modalities", "speed", "format")  # fmt: skip


def updated(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return the settings with changes merged in.

    Raises:
        InvalidRequest: A key or value is invalid; `param` names it.
    """
    before = as_json(settings)
    kind = changes.get("type", before["type"])
    if kind != before["type"]:
        raise InvalidRequest(f"this is a {before['type']} session", param="session.type")
    given = {key: value for key, value in changes.items() if key not in _FIXED}
    merged = _merge(before, given)
    _name_voice(merged)
    return _checked(merged, type(settings))


def named(settings: Settings, expires_at: int) -> Settings:
    """Return the settings with a new id and their expiry time."""
    session_id = f"sess_{uuid4().hex[:24]}"
    return msgspec.structs.replace(settings, id=session_id, expires_at=expires_at)


def as_json(settings: Settings) -> dict[str, Any]:
    """Return the session object as JSON for the client."""
    made: dict[str, Any] = msgspec.to_builtins(settings)
    output = made["audio"].get("output")
    detection = made["audio"]["input"]["turn_detection"]
    # clients may reject keys that they do not know
    for part, key in ((output, "lead_ms"), (detection, "vad"), (made, "seed")):
        if part is not None and part.get(key, 0) is None:
            del part[key]
    return made


def wire_format(chosen: AudioFormat) -> WireFormat:
    """Return the wire format of an audio format."""
    return FORMATS[str(chosen.__struct_config__.tag)]


def input_wire(settings: Settings) -> WireFormat:
    """Return the wire format of the user's audio."""
    return wire_format(settings.audio.input.format)


def check_formats(settings: Settings) -> None:
    """Reject audio formats if tracks carry the audio. Raises InvalidRequest."""
    for place in ("input", "output"):
        part = getattr(settings.audio, place, None)
        if part is not None and not isinstance(part.format, PcmFormat):
            raise InvalidRequest(
                "over WebRTC, audio is sent in Opus", param=f"session.audio.{place}.format"
            )


def retention_of(settings: RealtimeSettings) -> float | None:
    """Return the share of a conversation that outgrows the context to keep; None for all of it."""
    match settings.truncation:
        case RetentionRatio(retention_ratio=ratio):
            return ratio
        case "disabled":
            return None
    return _AUTO_RATIO


def detection_of(settings: Settings) -> Detection | None:
    """Return the turn detection settings, or None for push to talk."""
    chosen = settings.audio.input.turn_detection
    answers = isinstance(settings, RealtimeSettings)
    match chosen:
        case ServerVadSettings():
            return ServerVad(
                chosen.threshold,
                chosen.prefix_padding_ms,
                chosen.silence_duration_ms,
                chosen.idle_timeout_ms,
                answers and chosen.create_response is not False,
                answers and chosen.interrupt_response is not False,
            )
        case SemanticVadSettings():
            return SemanticVad(
                chosen.eagerness,
                answers and chosen.create_response is not False,
                answers and chosen.interrupt_response is not False,
            )
    return None


def vad_of(settings: Settings, default: VadName) -> VadName:
    """Return what detects speech.

    Args:
        settings: The session's.
        default: The server's.
    """
    chosen = settings.audio.input.turn_detection
    return default if chosen is None or chosen.vad is None else chosen.vad


def _merge(before: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(before)
    for key, value in changes.items():
        known = before.get(key)
        if value is None and key in _NULL_IS_DEFAULT:
            merged.pop(key, None)
        elif (
            not isinstance(value, dict)
            or not isinstance(known, dict)
            or (key in _TYPED and value.get("type", known.get("type")) != known.get("type"))
        ):
            merged[key] = value
        else:
            merged[key] = _merge(known, value)
    return merged


def _name_voice(merged: dict[str, Any]) -> None:
    """Replace `{"id": "..."}` by its id."""
    audio = merged.get("audio")
    output = audio.get("output") if isinstance(audio, dict) else None
    voice = output.get("voice") if isinstance(output, dict) else None
    if isinstance(voice, dict) and voice.keys() == {"id"}:
        output["voice"] = voice["id"]  # type: ignore[index]


def _checked(value: dict[str, Any], kind: type[Settings]) -> Settings:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, param, code = describe(error, "session")
        raise EventError(message, code, param=param) from error
