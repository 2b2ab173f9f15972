"""Settings of the API servers. `izwi_api.environment` reads them from the environment."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from izwi.audio.limits import DecodeLimits
from izwi.errors import InvalidRequest, ModelNotFound
from izwi_api.sessions.limits import SessionLimits
from izwi_api.sessions.open_sessions import SessionCounts
from izwi_api.usage.keys import check_key, digest_of
from izwi_api.voices.reference_hosts import FetchPace, ReferenceHost, ReferenceUrl

logger = logging.getLogger(__name__)

# speech, transcription, word times, chat
DEFAULT_MODELS = ("izwi-tiny-tts", "izwi-tiny-asr", "izwi-tiny-aligner", "izwi-tiny-chat")

# OpenAI's voices. A name without an entry in `voice_aliases` stands for one of the checkpoint's
# speakers, by its position in this list, so that each name keeps one voice.
OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "coral", "echo", "fable", "onyx"),
    *("nova", "sage", "shimmer", "verse", "marin", "cedar"),
)
# APIs of other vendors, served beside OpenAI's if the operator says so; docs/clients.md.
APIS = ("elevenlabs", "deepgram", "twilio", "vonage")
MEGABYTE = 1024 * 1024
# Pieces of uploaded files that an API server has in the engines, at most and at least: twice as
# many as an engine runs together by default, so that it never waits for files.
MAX_UPLOAD_PIECES, _FEWEST_UPLOAD_PIECES = 128, 8
DEFAULT_LEAD_MS = 250
# A lead shorter than one chunk of audio would leave gaps.
LEAST_LEAD_MS, MOST_LEAD_MS = 40, 60_000
# Detectors of speech in live sessions.
VadName = Literal["webrtc", "silero"]
SILERO_PACKAGE = "silero_vad"
# What `izwi[images]` brings, and the file that makes a folder a pipeline.
IMAGE_PACKAGES = ("diffusers", "transformers", "accelerate", "PIL")
PIPELINE_INDEX = "model_index.json"
_SHORT_KEY_CHARS = 16
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^\s/?#@,]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class RequestPace:
    """Time limits for receiving a request.

    The default allows 25 MiB over 2 Mbit/s, which take 105 s.

    Attributes:
        max_head_s: Seconds for the request line and the headers.
        grace_s: Seconds for a body before its rate counts.
        min_bytes_per_s: Bytes of a body that add one second.
        max_body_s: Seconds for a whole body at any rate.
    """

    max_head_s: float = 30.0
    grace_s: float = 20.0
    min_bytes_per_s: float = 16_384.0
    max_body_s: float = 300.0

    def body_time_s(self, num_bytes: int) -> float:
        """Return the time limit, in seconds, after so many received bytes."""
        return min(self.max_body_s, self.grace_s + num_bytes / self.min_bytes_per_s)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of the certificate.

    Attributes:
        cert: PEM: the certificate and the intermediate ones.
        key: PEM of its private key, without a password; None if it is in the certificate's file.
    """

    cert: Path
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use the server, and what is logged of each call.

    Attributes:
        api_key_digest: SHA-256 of a key without limits; the key itself is not stored.
        api_keys_file: File of keys, see `izwi_api.usage.keys`.
        cors_origins: Origins of other sites' pages that may call, or "*".
        audit_log: File of the audit log, see `izwi_api.http.audit`.
        allowed_hosts: Host names for the server, besides localhost and IP addresses; None allows
            every name.
    """

    api_key_digest: bytes | None = field(default=None, repr=False)
    api_keys_file: Path | None = None
    cors_origins: tuple[str, ...] = ()
    audit_log: Path | None = None
    allowed_hosts: tuple[str, ...] | None = None

    @property
    def requires_key(self) -> bool:
        """Whether a key is required."""
        return self.api_key_digest is not None or self.api_keys_file is not None


@dataclass(frozen=True, slots=True)
class ImageModel:
    """What draws.

    Attributes:
        name: Under which it is served.
        folder: A pipeline of diffusers.
        socket: Where the process that draws accepts jobs; set when the server starts.
    """

    name: str
    folder: Path
    socket: Path = Path()


@dataclass(frozen=True, slots=True)
class Webhook:
    """Who is told when a batch has ended; nobody without a URL.

    Attributes:
        url: Where events are sent.
        secret: The key that signs them.
    """

    url: ReferenceUrl | None = None
    secret: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Degradation:
    """What chats are answered with while their model is loaded.

    Attributes:
        waiting: Requests that wait for a model when it counts as loaded.
        max_tokens: Most tokens of an answer then; fewer if more wait. 0: no limit.
        max_decode_s: Seconds that an answer may take then from its first token; fewer if more wait.
            0: no limit.
        smaller: Name of a chat model -> the one that answers in its place.
    """

    waiting: int
    max_tokens: int = 0
    smaller: Mapping[str, str] = field(default_factory=dict)
    max_decode_s: float = 0.0


LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What the processes of a server log, and how.

    Attributes:
        format: One of `LOG_FORMATS`.
        levels: Least level by logger, such as `izwi.engine`; the empty name stands for all others.
    """

    format: str = "text"
    levels: Mapping[str, str] = field(default_factory=dict)


def upload_pieces(max_waiting: int, num_api_servers: int) -> int:
    """Return how many pieces of files each API server may have in the engines.

    No more than an equal part of an engine's queue: a file is decoded before its pieces are
    submitted, and should not be refused after that.

    Args:
        max_waiting: Requests of one model that may wait on one engine.
        num_api_servers: API servers that share it.
    """
    return max(
        _FEWEST_UPLOAD_PIECES, min(MAX_UPLOAD_PIECES, max_waiting // max(1, num_api_servers))
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits, folders and features.

    Attributes:
        home: Folder of cloned voices (in its folder `voices`), keys and counts.
        max_upload_bytes: Bytes of one uploaded audio file.
        max_json_bytes: Bytes of one JSON body.
        max_input_chars: Characters of text to speak, and of its instructions.
        max_audio_s: Seconds of audio in one uploaded file.
        max_decoded_bytes: Bytes that one file may decode to.
        max_reference_bytes: Bytes of one reference clip.
        max_reference_s: Seconds of one reference clip.
        reference_hosts: Hosts from which clips may be fetched.
        reference_pace: The minimum rate of such a fetch.
        voice_aliases: OpenAI voice name -> speaker of the checkpoint.
        model_aliases: Additional name of a model -> the name under which it is served.
        require_consent: A clip needs the id of a consent recording; otherwise a statement that the
            speaker agreed is enough.
        max_upload_pieces: Pieces of uploaded files that one API server may have in the engines, so
            that all servers together fit into an engine's queue; see `upload_pieces`.
        decode_workers: Processes that decode uploaded files; with 0 this process decodes them, and
            a broken file may crash it.
        detects_speech: Files and pieces of files without speech are not transcribed; see
            `izwi.audio.speech_detection`.
        manage_models: Callers may load, unload and pull models.
        stream_text_s: Seconds after which a speech session with an open utterance ends, if neither
            text other than white space is written nor audio is read.
        stream_utterance_chars: Characters of one utterance of such a session; None uses the limit
            of `izwi_api.schemas.speech_stream`.
        apis: Those of `APIS` that are served.
        batches: Files and batches are served, and kept in the folder `batches` of `home`.
        batch_lines: Lines of batches that an API server has in progress at the same time.
        max_batch_file_bytes: Bytes of one stored file.
        webhook: Who is told when a batch has ended.
        sessions: Maximum number of live sessions.
        session_limits: Limits of one session of `/v1/realtime`.
        live_lead_ms: Milliseconds of audio that a live session is sent ahead of its playback,
            unless it asks for another lead; 0: as fast as it is made.
        live_vad: What detects speech in live sessions that ask for nothing else.
        hung_after_s: Seconds after which an API server or engine that stops responding is killed.
        warm: File of what engines compute when they start; see `izwi_api.services.warming`.
        resume_within_s: Seconds for which requests wait for another engine after theirs has died;
            0: they fail at once.
        offline: Models loaded by callers come from the local cache only.
        pace: The minimum rate of requests.
        access: Who may use the server.
        tls: The certificate to serve HTTPS with; None serves plain HTTP.
        image_model: What draws; None: nothing does.
        video_model: What draws videos, in a process of its own.
        log: What is logged, and how.
        degradation: What chats are answered with under load; None: the same as always.
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
    max_upload_pieces: int = MAX_UPLOAD_PIECES
    decode_workers: int = 2
    detects_speech: bool = True
    manage_models: bool = False
    stream_text_s: float = 30.0
    stream_utterance_chars: int | None = None
    apis: tuple[str, ...] = ()
    batches: bool = False
    batch_lines: int = 4
    max_batch_file_bytes: int = 200 * MEGABYTE
    webhook: Webhook = Webhook()
    sessions: SessionCounts = field(default_factory=SessionCounts)
    session_limits: SessionLimits = field(default_factory=SessionLimits)
    live_lead_ms: int = DEFAULT_LEAD_MS
    live_vad: VadName = "webrtc"
    hung_after_s: float = 300.0
    resume_within_s: float = 60.0
    warm: Path | None = None
    offline: bool = False
    pace: RequestPace = field(default_factory=RequestPace)
    access: Access = Access()
    tls: TlsFiles | None = None
    image_model: ImageModel | None = None
    video_model: ImageModel | None = None
    log: LogSettings = field(default_factory=LogSettings)
    degradation: Degradation | None = None

    @property
    def upload_limits(self) -> DecodeLimits:
        """Limits of a decoded file to transcribe."""
        return DecodeLimits(self.max_audio_s, self.max_decoded_bytes)

    @property
    def reference_limits(self) -> DecodeLimits:
        """Limits of a decoded reference clip."""
        return DecodeLimits(self.max_reference_s, self.max_decoded_bytes)


def key_digest(key: str, param: str) -> bytes:
    """Return the stored form of a key that an operator chose. Raises as `check_key`."""
    check_key(key, param)
    if len(key) < _SHORT_KEY_CHARS:
        logger.warning("%s is so short that it can be guessed", param)
    return digest_of(key)


def is_lead_ms(value: float) -> bool:
    """Return whether a lead is allowed. 0 disables pacing: audio is sent as it is generated."""
    return value == 0 or LEAST_LEAD_MS <= value <= MOST_LEAD_MS


def check_lead_ms(lead_ms: float, param: str) -> int:
    """Return a lead over playback in whole milliseconds. Raises InvalidRequest."""
    if not is_lead_ms(lead_ms):
        raise InvalidRequest(
            f"{param} must be 0 or from {LEAST_LEAD_MS} to {MOST_LEAD_MS}, got {lead_ms:g}",
            param=param,
        )
    return round(lead_ms)


def vad_name(text: str, param: str) -> VadName:
    """Return the name of a detector of speech. Raises InvalidRequest if it is none."""
    if text == "webrtc":
        return "webrtc"
    if text == "silero":
        return "silero"
    names = " or ".join(get_args(VadName))
    raise InvalidRequest(f"{param} must be {names}, got {text!r}", param=param)


def check_vad(name: VadName, param: str) -> None:
    """Raise InvalidRequest if a detector of speech is not installed."""
    if name == "silero" and find_spec(SILERO_PACKAGE) is None:
        raise InvalidRequest(
            f"{param}: Silero's detector is not installed here; run pip install 'izwi[silero]', "
            "or use webrtc",
            param=param,
        )


def check_drawn_by(served: ImageModel | None, name: str | None, what: str = "images") -> ImageModel:
    """Return the model that draws, if a caller may have meant it.

    Args:
        served: The server's; None if it has none.
        name: What the caller asked for; None for any.
        what: It draws "images" or "videos".

    Raises:
        ModelNotFound: There is none, or none of that name.
    """
    if served is None:
        message = f"this server draws no {what}: it was started without --{what}"
        raise ModelNotFound(message, param="model")
    if name not in (None, served.name):
        message = f"no model that draws {what} is called {name!r}; it is {served.name!r}"
        raise ModelNotFound(message, param="model")
    return served


def read_image_model(entry: str, option: str = "--images") -> ImageModel:
    """Read `[NAME=]FOLDER`, the value of an option.

    Raises:
        InvalidRequest: The folder has no pipeline, or what draws is not installed.
    """
    name, _, folder = entry.partition("=") if not Path(entry).exists() else ("", "", entry)
    path = Path(folder or name).expanduser().absolute()
    if not (path / PIPELINE_INDEX).is_file():
        raise InvalidRequest(
            f"{option}: {path} has no {PIPELINE_INDEX}, so it is no pipeline of diffusers",
            param=option.removeprefix("--"),
        )
    if missing := [package for package in IMAGE_PACKAGES if find_spec(package) is None]:
        raise InvalidRequest(
            f"{option} needs {', '.join(missing)}, not installed here; run pip install "
            "'izwi[images]'",
            param=option.removeprefix("--"),
        )
    return ImageModel(name if folder and name else path.name, path)


def api_names(text: str, param: str) -> tuple[str, ...]:
    """Return the names in a list like "elevenlabs,deepgram". Raises InvalidRequest."""
    names = dict.fromkeys(filter(None, (name.strip().lower() for name in text.split(","))))
    if unknown := [name for name in names if name not in APIS]:
        raise InvalidRequest(
            f"{param} must be some of {', '.join(APIS)}, got {unknown[0]!r}", param=param
        )
    return tuple(names)


def check_origin(text: str, param: str) -> str:
    """Return the origin of a web page, as browsers write it, or "*".

    Raises:
        InvalidRequest: The text is no origin.
    """
    origin = text.lower()
    if not _ORIGIN.fullmatch(origin):
        raise InvalidRequest(
            f"{param} must be like 'https://page.example:8443', without a path, got {text!r}",
            param=param,
        )
    return origin
