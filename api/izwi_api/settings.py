"""Settings of the API servers. Environment variables are read only here."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from izwi.audio.decode import DecodeLimits
from izwi.errors import InvalidRequest
from izwi_api.http.keys import check_key, digest_of
from izwi_api.http.request_pace import FetchPace, RequestPace
from izwi_api.http.tls_files import TlsFiles
from izwi_api.sessions.limits import SessionLimits
from izwi_api.sessions.open_sessions import SessionCounts
from izwi_api.voices.reference_hosts import ReferenceHost, parse_host

logger = logging.getLogger(__name__)

# speaks, listens, and says when words are said
DEFAULT_MODELS = ("izwi-tiny-tts", "izwi-tiny-asr", "izwi-tiny-aligner")

# OpenAI's voices. A name without an entry of its own in `voice_aliases` takes the checkpoint's
# speaker at its place in this list, round and round, so that each name keeps one voice.
OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "coral", "echo", "fable", "onyx"),
    *("nova", "sage", "shimmer", "verse", "marin", "cedar"),
)
_MEGABYTE = 1024 * 1024
_SHORT_KEY_CHARS = 16
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^\s/?#@,]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may come in, and what is written down about it.

    Attributes:
        api_key_digest: SHA-256 of a key without limits; the key itself is not kept.
        api_keys_file: File of keys, see `izwi_api.http.keys`.
        cors_origins: Origins of web pages elsewhere that may call, or "*".
        audit_log: File of the audit log, see `izwi_api.http.audit`.
        allowed_hosts: Names by which the server may be called, beside localhost and addresses;
            None takes every name.
    """

    api_key_digest: bytes | None = field(default=None, repr=False)
    api_keys_file: Path | None = None
    cors_origins: tuple[str, ...] = ()
    audit_log: Path | None = None
    allowed_hosts: tuple[str, ...] | None = None

    @property
    def asks_for_key(self) -> bool:
        """Whether only who has a key may come in."""
        return self.api_key_digest is not None or self.api_keys_file is not None


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits and places.

    Attributes:
        home: Where cloned voices are kept (in its folder `voices`).
        max_upload_bytes: Bytes of one uploaded audio file.
        max_json_bytes: Bytes of one JSON body.
        max_input_chars: Characters of text to speak, and of its instructions.
        max_audio_s: Seconds of sound in one uploaded file.
        max_decoded_bytes: Bytes that one file may decode to.
        max_reference_bytes: Bytes of one reference clip.
        max_reference_s: Seconds of one reference clip.
        reference_hosts: Where clips may be fetched that are given by their address.
        reference_pace: How fast these must come.
        voice_aliases: OpenAI voice name -> speaker of the checkpoint.
        model_aliases: Further name of a model -> the name under which it is served.
        require_consent: A clip is taken only with the id of a consent recording; else with any
            word that the speaker agreed.
        decode_workers: Processes that decode uploaded files; 0 decodes in this one, which a broken
            file may then bring down.
        detects_speech: Files and pieces of files that hold no speech are not transcribed; see
            `izwi.audio.speech_detection`.
        manage_models: Callers may load, unload and pull models.
        stream_text_s: Seconds after which a speech session ends whose utterance is open, if neither
            text other than white space was written nor sound was read.
        stream_utterance_chars: Characters of one utterance of such a session; None takes what
            `izwi_api.schemas.speech_stream` has.
        sessions: How many live sessions there may be.
        session_limits: Of one of them, at `/v1/realtime`.
        hung_after_s: Seconds after which an API server or an engine that does not go on is ended.
        resume_within_s: Seconds that requests wait for another engine to go on with when theirs
            has died; 0: they fail.
        offline: Models that they load come from the local cache alone.
        pace: How fast requests must arrive.
        access: Who may come in.
        tls: The certificate to serve HTTPS with; None serves plain HTTP.
    """

    home: Path = field(default_factory=lambda: Path.home() / ".izwi")
    max_upload_bytes: int = 25 * _MEGABYTE
    max_json_bytes: int = 16 * _MEGABYTE
    max_input_chars: int = 4096
    max_audio_s: float = 3900.0
    max_decoded_bytes: int = 1 << 30
    max_reference_bytes: int = 10 * _MEGABYTE
    max_reference_s: float = 60.0
    reference_hosts: tuple[ReferenceHost, ...] = ()
    reference_pace: FetchPace = field(default_factory=FetchPace)
    voice_aliases: Mapping[str, str] = field(default_factory=dict)
    model_aliases: Mapping[str, str] = field(default_factory=dict)
    require_consent: bool = False
    decode_workers: int = 2
    detects_speech: bool = True
    manage_models: bool = False
    stream_text_s: float = 30.0
    stream_utterance_chars: int | None = None
    sessions: SessionCounts = field(default_factory=SessionCounts)
    session_limits: SessionLimits = field(default_factory=SessionLimits)
    hung_after_s: float = 300.0
    resume_within_s: float = 60.0
    offline: bool = False
    pace: RequestPace = field(default_factory=RequestPace)
    access: Access = Access()
    tls: TlsFiles | None = None

    @property
    def upload_limits(self) -> DecodeLimits:
        """What a file to transcribe may decode to."""
        return DecodeLimits(self.max_audio_s, self.max_decoded_bytes)

    @property
    def reference_limits(self) -> DecodeLimits:
        """What a reference clip may decode to."""
        return DecodeLimits(self.max_reference_s, self.max_decoded_bytes)


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the environment.

    IZWI_HOME, IZWI_MAX_UPLOAD_MB, IZWI_MAX_AUDIO_S, IZWI_DECODE_WORKERS, IZWI_HUNG_AFTER_S,
    IZWI_RESUME_WITHIN_S, IZWI_STREAM_TEXT_S, IZWI_MAX_SESSIONS, IZWI_MAX_KEY_SESSIONS,
    IZWI_SESSION_S, IZWI_SESSION_IDLE_S, IZWI_SESSION_UNREAD_S,
    IZWI_SPEECH_DETECTION ("0" turns it off) and IZWI_VOICE_ALIASES ("alloy=Ann,.."),
    IZWI_REFERENCE_HOSTS ("clips.example,http://10.0.0.5:9000"),
    IZWI_MAX_REFERENCE_FETCH_S, IZWI_MAX_HEAD_S, IZWI_MAX_BODY_S, IZWI_BODY_GRACE_S and
    IZWI_MIN_BODY_BYTES_PER_S, and what `read_access` reads.

    Raises:
        InvalidRequest: A value cannot be used; the message names its variable.
    """
    default = Settings()
    return Settings(
        home=Path(environ["IZWI_HOME"]).expanduser() if "IZWI_HOME" in environ else default.home,
        max_upload_bytes=int(_number(environ, "IZWI_MAX_UPLOAD_MB", 25) * _MEGABYTE),
        max_audio_s=_number(environ, "IZWI_MAX_AUDIO_S", default.max_audio_s),
        reference_hosts=read_reference_hosts(environ),
        reference_pace=FetchPace(
            max_s=_number(environ, "IZWI_MAX_REFERENCE_FETCH_S", default.reference_pace.max_s)
        ),
        stream_text_s=_number(environ, "IZWI_STREAM_TEXT_S", default.stream_text_s),
        sessions=_session_counts(environ),
        session_limits=SessionLimits(
            total_s=_number(environ, "IZWI_SESSION_S", default.session_limits.total_s),
            idle_s=_number(environ, "IZWI_SESSION_IDLE_S", default.session_limits.idle_s),
            unread_s=_number(environ, "IZWI_SESSION_UNREAD_S", default.session_limits.unread_s),
        ),
        hung_after_s=_number(environ, "IZWI_HUNG_AFTER_S", default.hung_after_s),
        resume_within_s=_number(
            environ, "IZWI_RESUME_WITHIN_S", default.resume_within_s, may_be_zero=True
        ),
        decode_workers=round(
            _number(environ, "IZWI_DECODE_WORKERS", default.decode_workers, may_be_zero=True)
        ),
        detects_speech=_switch(environ, "IZWI_SPEECH_DETECTION", default.detects_speech),
        voice_aliases=_aliases(environ.get("IZWI_VOICE_ALIASES", "")),
        pace=RequestPace(
            _number(environ, "IZWI_MAX_HEAD_S", default.pace.max_head_s),
            _number(environ, "IZWI_BODY_GRACE_S", default.pace.grace_s),
            _number(environ, "IZWI_MIN_BODY_BYTES_PER_S", default.pace.min_bytes_per_s),
            _number(environ, "IZWI_MAX_BODY_S", default.pace.max_body_s),
        ),
        access=read_access(environ),
    )


def read_access(environ: Mapping[str, str]) -> Access:
    """Read who may come in.

    IZWI_API_KEY, IZWI_API_KEYS, IZWI_AUDIT_LOG, IZWI_ALLOWED_HOSTS ("a.example,b.example") and
    IZWI_CORS_ORIGINS ("https://a.example,.."). A variable that is empty counts as not there.

    Raises:
        InvalidRequest: A value cannot be used; the message names its variable.
    """
    origins = _names(environ.get("IZWI_CORS_ORIGINS", ""))
    return Access(
        key_digest(environ["IZWI_API_KEY"], "IZWI_API_KEY")
        if environ.get("IZWI_API_KEY")
        else None,
        _path(environ.get("IZWI_API_KEYS")),
        tuple(check_origin(origin, "IZWI_CORS_ORIGINS") for origin in origins),
        _path(environ.get("IZWI_AUDIT_LOG")),
        _names(environ.get("IZWI_ALLOWED_HOSTS", "")) or None,
    )


def read_reference_hosts(environ: Mapping[str, str]) -> tuple[ReferenceHost, ...]:
    """Read IZWI_REFERENCE_HOSTS. Raises InvalidRequest as `parse_host`."""
    param = "IZWI_REFERENCE_HOSTS"
    return tuple(parse_host(entry, param) for entry in _names(environ.get(param, "")))


def key_digest(key: str, param: str) -> bytes:
    """Return what is kept of a key that an operator chose. Raises InvalidRequest as `check_key`."""
    check_key(key, param)
    if len(key) < _SHORT_KEY_CHARS:
        logger.warning("%s is so short that it can be guessed", param)
    return digest_of(key)


def check_origin(text: str, param: str) -> str:
    """Return the origin of a web page, as browsers write it, or "*".

    Raises:
        InvalidRequest: It is not one.
    """
    origin = text.lower()
    if not _ORIGIN.fullmatch(origin):
        raise InvalidRequest(
            f"{param} must be like 'https://page.example:8443', without a path, got {text!r}",
            param=param,
        )
    return origin


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


def _path(text: str | None) -> Path | None:
    return Path(text).expanduser() if text else None


def _number(
    environ: Mapping[str, str], name: str, default: float, *, may_be_zero: bool = False
) -> float:
    text = environ.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf or (value == 0 and not may_be_zero):
        least = "of at least 0" if may_be_zero else "above 0"
        raise InvalidRequest(f"{name} must be a number {least}, got {text!r}", param=name)
    return value


def _session_counts(environ: Mapping[str, str]) -> SessionCounts:
    a_key = None
    if environ.get("IZWI_MAX_KEY_SESSIONS"):
        a_key = math.ceil(_number(environ, "IZWI_MAX_KEY_SESSIONS", 1))
    default = SessionCounts().a_server
    return SessionCounts(math.ceil(_number(environ, "IZWI_MAX_SESSIONS", default)), a_key)


def _switch(environ: Mapping[str, str], name: str, default: bool) -> bool:
    text = environ.get(name, "")
    if text not in ("", "0", "1"):
        raise InvalidRequest(f"{name} must be 0 or 1, got {text!r}", param=name)
    return text == "1" if text else default


def _aliases(text: str) -> dict[str, str]:
    aliases: dict[str, str] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        alias, equals, speaker = entry.partition("=")
        if not (alias.strip() and equals and speaker.strip()):
            raise InvalidRequest(
                f"IZWI_VOICE_ALIASES must be like 'alloy=Ann,echo=Bob', got {entry!r}",
                param="IZWI_VOICE_ALIASES",
            )
        aliases[alias.strip().lower()] = speaker.strip()
    return aliases
