"""Settings of the API servers. `izwi_api.environment` reads them from the environment."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from izwi.audio.decode import DecodeLimits
from izwi.errors import InvalidRequest
from izwi_api.http.keys import check_key, digest_of
from izwi_api.http.request_pace import FetchPace, RequestPace
from izwi_api.http.tls_files import TlsFiles
from izwi_api.realtime.playback import (
    DEFAULT_LEAD_MS,
    LEAST_LEAD_MS,
    MOST_LEAD_MS,
    is_lead_ms,
)
from izwi_api.sessions.limits import SessionLimits
from izwi_api.sessions.open_sessions import SessionCounts
from izwi_api.voices.reference_hosts import ReferenceHost

logger = logging.getLogger(__name__)

# speaks, listens, says when words are said, and answers
DEFAULT_MODELS = ("izwi-tiny-tts", "izwi-tiny-asr", "izwi-tiny-aligner", "izwi-tiny-chat")

# OpenAI's voices. A name without an entry of its own in `voice_aliases` takes the checkpoint's
# speaker at its place in this list, round and round, so that each name keeps one voice.
OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "coral", "echo", "fable", "onyx"),
    *("nova", "sage", "shimmer", "verse", "marin", "cedar"),
)
MEGABYTE = 1024 * 1024
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
        live_lead_ms: Milliseconds of sound that a live session is sent ahead of its playback, if it
            asks for no other lead; 0: as fast as it is made.
        hung_after_s: Seconds after which an API server or an engine that does not go on is ended.
        resume_within_s: Seconds that requests wait for another engine to go on with when theirs
            has died; 0: they fail.
        offline: Models that they load come from the local cache alone.
        pace: How fast requests must arrive.
        access: Who may come in.
        tls: The certificate to serve HTTPS with; None serves plain HTTP.
    """

    home: Path = field(default_factory=lambda: Path.home() / ".izwi")
    max_upload_bytes: int = 25 * MEGABYTE
    max_json_bytes: int = 16 * MEGABYTE
    max_input_chars: int = 4096
    max_audio_s: float = 3900.0
    max_decoded_bytes: int = 1 << 30
    max_reference_bytes: int = 10 * MEGABYTE
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
    live_lead_ms: int = DEFAULT_LEAD_MS
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


def key_digest(key: str, param: str) -> bytes:
    """Return what is kept of a key that an operator chose. Raises InvalidRequest as `check_key`."""
    check_key(key, param)
    if len(key) < _SHORT_KEY_CHARS:
        logger.warning("%s is so short that it can be guessed", param)
    return digest_of(key)


def check_lead_ms(lead_ms: float, param: str) -> int:
    """Return a lead over playback in whole milliseconds. Raises InvalidRequest."""
    if not is_lead_ms(lead_ms):
        raise InvalidRequest(
            f"{param} must be 0 or from {LEAST_LEAD_MS} to {MOST_LEAD_MS}, got {lead_ms:g}",
            param=param,
        )
    return round(lead_ms)


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
