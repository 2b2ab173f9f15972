"""Environment variables that set `Settings`: one table, which docs/environment.md prints.

`python -m izwi_api.environment > docs/environment.md` writes that page; a test compares them.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import attrgetter
from pathlib import Path
from typing import Any

from izwi.errors import InvalidRequest
from izwi_api.settings import (
    LOG_FORMATS,
    LOG_LEVELS,
    MEGABYTE,
    Access,
    LogSettings,
    Settings,
    api_names,
    check_lead_ms,
    check_origin,
    key_digest,
    vad_name,
)
from izwi_api.voices.reference_hosts import ReferenceUrl, parse_host, parse_url

Parse = Callable[[str, str], Any]


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable.

    Attributes:
        name: The variable's name.
        field: The field of `Settings` that it sets; dots separate groups.
        parse: (text, name) -> the field's value. Raises InvalidRequest, which names the variable.
        values: The allowed values.
        meaning: What it sets.
    """

    name: str
    field: str
    parse: Parse
    values: str
    meaning: str


def _finite(text: str) -> float:
    """Return the number in a text; -1 if it is none."""
    try:
        value = float(text)
    except ValueError:
        return -1.0
    return value if math.isfinite(value) else -1.0


def _above_zero(text: str, name: str) -> float:
    value = _finite(text)
    if value <= 0:
        raise InvalidRequest(f"{name} must be a number above 0, got {text!r}", param=name)
    return value


def _from_zero(text: str, name: str) -> float:
    value = _finite(text)
    if value < 0:
        raise InvalidRequest(f"{name} must be a number of at least 0, got {text!r}", param=name)
    return value


def _megabytes(text: str, name: str) -> int:
    return int(_above_zero(text, name) * MEGABYTE)


def _whole(parse: Parse) -> Parse:
    """Numbers, rounded up to whole ones."""
    return lambda text, name: math.ceil(parse(text, name))


def _lead_ms(text: str, name: str) -> int:
    return check_lead_ms(_from_zero(text, name), name)


def _switch(text: str, name: str) -> bool:
    if text not in ("0", "1"):
        raise InvalidRequest(f"{name} must be 0 or 1, got {text!r}", param=name)
    return text == "1"


def _log_format(text: str, name: str) -> str:
    if text not in LOG_FORMATS:
        allowed = " or ".join(LOG_FORMATS)
        raise InvalidRequest(f"{name} must be {allowed}, got {text!r}", param=name)
    return text


def log_levels(text: str, name: str) -> dict[str, str]:
    """Read levels like `info,izwi.engine=debug` of a variable or option. Raises InvalidRequest."""
    levels: dict[str, str] = {}
    for entry in _names(text):
        module, _, level = entry.rpartition("=")
        if level.strip().lower() not in LOG_LEVELS:
            raise InvalidRequest(
                f"{name} must be like 'info,izwi.engine=debug', with a level of "
                f"{', '.join(LOG_LEVELS)}, got {entry!r}",
                param=name,
            )
        levels[module.strip()] = level.strip().lower()
    return levels


def _path(text: str, name: str) -> Path:
    del name
    return Path(text).expanduser()


def _names(text: str, name: str = "") -> tuple[str, ...]:
    del name
    return tuple(filter(None, map(str.strip, text.split(","))))


def _some_names(text: str, name: str) -> tuple[str, ...] | None:
    return _names(text, name) or None


def _each(parse: Parse) -> Parse:
    """Split a list at its commas."""
    return lambda text, name: tuple(parse(entry, name) for entry in _names(text))


def _aliases(text: str, name: str) -> dict[str, str]:
    aliases: dict[str, str] = {}
    for entry in _names(text):
        alias, equals, speaker = entry.partition("=")
        if not (alias.strip() and equals and speaker.strip()):
            raise InvalidRequest(
                f"{name} must be like 'alloy=Ann,echo=Bob', got {entry!r}", param=name
            )
        aliases[alias.strip().lower()] = speaker.strip()
    return aliases


def _endpoint(text: str, name: str) -> ReferenceUrl:
    url = parse_url(text, name)
    parse_host(f"{url.host.scheme}://{url.host.authority}", name)  # no name of this machine
    return url


def _webhook_secret(text: str, name: str) -> bytes:
    """Read a secret as Standard Webhooks writes it: whsec_ and base64."""
    head, _, encoded = text.partition("whsec_")
    try:
        secret = b"" if head else base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if not _MIN_SECRET_BYTES <= len(secret) <= _MAX_SECRET_BYTES:
        raise InvalidRequest(
            f"{name} must be whsec_ and the base64 of {_MIN_SECRET_BYTES} to {_MAX_SECRET_BYTES} "
            "random bytes",
            param=name,
        )
    return secret


_MIN_SECRET_BYTES, _MAX_SECRET_BYTES = 24, 64
_SECONDS = "seconds"

VARIABLES = (
    Variable(
        "IZWI_HOME",
        "home",
        _path,
        "folder",
        "stored voices, named and pulled checkpoints, counts of keys, keys.toml",
    ),
    Variable(
        *("IZWI_MAX_UPLOAD_MB", "max_upload_bytes", _megabytes),
        *("MiB", "largest uploaded file"),
    ),
    Variable("IZWI_MAX_AUDIO_S", "max_audio_s", _above_zero, _SECONDS, "longest audio in one file"),
    Variable(
        *("IZWI_DECODE_WORKERS", "decode_workers", _whole(_from_zero), "0 or more"),
        "processes that decode uploads; 0 decodes in the API server, which a broken file may crash",
    ),
    Variable(
        *("IZWI_SPEECH_DETECTION", "detects_speech", _switch, "0 or 1"),
        "skip files and parts of files without speech",
    ),
    Variable(
        *("IZWI_VOICE_ALIASES", "voice_aliases", _aliases, "`alloy=Ann,echo=Bob`"),
        "speakers of the model under other names",
    ),
    Variable(
        *("IZWI_REFERENCE_HOSTS", "reference_hosts", _each(parse_host)),
        *("`clips.example,http://10.0.0.5:9000`", "hosts from which reference clips are fetched"),
    ),
    Variable(
        *("IZWI_MAX_REFERENCE_FETCH_S", "reference_pace.max_s", _above_zero, _SECONDS),
        "longest fetch of a reference clip",
    ),
    Variable(
        *("IZWI_HUNG_AFTER_S", "hung_after_s", _above_zero, _SECONDS),
        "a process that has not responded for this long is killed and restarted",
    ),
    Variable(
        *("IZWI_RESUME_WITHIN_S", "resume_within_s", _from_zero, "seconds; 0: they fail at once"),
        "how long requests wait for a new engine when theirs has died",
    ),
    Variable(
        *("IZWI_STREAM_TEXT_S", "stream_text_s", _above_zero, _SECONDS),
        "a speech session with an open utterance ends without new text or audio for this long",
    ),
    Variable(
        *("IZWI_APIS", "apis", api_names, "`elevenlabs,deepgram,twilio,vonage`"),
        "other vendors' APIs that are served, too",
    ),
    Variable(
        *("IZWI_BATCHES", "batches", _switch, "`1`"),
        "serve /v1/files and /v1/batches; they are kept in `IZWI_HOME/batches`",
    ),
    Variable(
        *("IZWI_BATCH_LINES", "batch_lines", _whole(_above_zero), "1 or more"),
        "lines of batches that an API server has in progress at once",
    ),
    Variable(
        *("IZWI_MAX_BATCH_FILE_MB", "max_batch_file_bytes", _megabytes, "MiB"),
        "largest stored file",
    ),
    Variable(
        *("IZWI_WEBHOOK_URL", "webhook.url", _endpoint, "`https://host.example/path`"),
        "where to send an event when a batch has ended (docs/batches.md)",
    ),
    Variable(
        *("IZWI_WEBHOOK_SECRET", "webhook.secret", _webhook_secret, "`whsec_` and base64"),
        "signs these events",
    ),
    Variable(
        *("IZWI_MAX_SESSIONS", "sessions.a_server", _whole(_above_zero), "1 or more"),
        "live sessions of a server",
    ),
    Variable(
        *("IZWI_MAX_KEY_SESSIONS", "sessions.a_key", _whole(_above_zero), "1 or more"),
        "live sessions of a key",
    ),
    Variable(
        "IZWI_SESSION_S", "session_limits.total_s", _above_zero, _SECONDS, "longest live session"
    ),
    Variable(
        *("IZWI_SESSION_IDLE_S", "session_limits.idle_s", _above_zero, _SECONDS),
        "an idle live session ends after this long",
    ),
    Variable(
        *("IZWI_SESSION_UNREAD_S", "session_limits.unread_s", _above_zero, _SECONDS),
        "a live session ends when its client reads nothing for this long",
    ),
    Variable(
        *("IZWI_LIVE_LEAD_MS", "live_lead_ms", _lead_ms),
        "milliseconds; 0: as fast as it is generated",
        "audio that live voice sends ahead of its playback, unless the session asks for another",
    ),
    Variable(
        *("IZWI_LIVE_VAD", "live_vad", vad_name, "`webrtc` or `silero`"),
        "what detects speech in live voice, unless the session asks for another",
    ),
    Variable(
        *("IZWI_MAX_HEAD_S", "pace.max_head_s", _above_zero, _SECONDS),
        "time for the request line and headers",
    ),
    Variable(
        *("IZWI_BODY_GRACE_S", "pace.grace_s", _above_zero, _SECONDS),
        "time for a body before its rate matters",
    ),
    Variable(
        *("IZWI_MIN_BODY_BYTES_PER_S", "pace.min_bytes_per_s", _above_zero, "bytes a second"),
        "slowest body after that",
    ),
    Variable("IZWI_MAX_BODY_S", "pace.max_body_s", _above_zero, _SECONDS, "total time for a body"),
    Variable("IZWI_LOG_FORMAT", "log.format", _log_format, "text or json", "format of log lines"),
    Variable(
        *("IZWI_LOG_LEVEL", "log.levels", log_levels, "`info,izwi.engine=debug`"),
        "least level of lines, of all modules and of some",
    ),
    Variable(
        *("IZWI_API_KEY", "access.api_key_digest", key_digest, "a key"),
        "the one key that callers need; for commands, the key that they send",
    ),
    Variable("IZWI_API_KEYS", "access.api_keys_file", _path, "file", "keys with limits"),
    Variable("IZWI_AUDIT_LOG", "access.audit_log", _path, "file", "a line for each request"),
    Variable(
        *("IZWI_ALLOWED_HOSTS", "access.allowed_hosts", _some_names, "`a.example,b.example`"),
        "names under which the server may be called",
    ),
    Variable(
        *("IZWI_CORS_ORIGINS", "access.cors_origins", _each(check_origin)),
        *("`https://a.example,...` or `*`", "origins of other web pages that may call the server"),
    ),
)


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read settings from the environment. An empty variable counts as not set.

    Raises:
        InvalidRequest: A value cannot be used; the message names its variable.
    """
    settings = reduce(lambda settings, one: _set(settings, one, environ), VARIABLES, Settings())
    if (settings.webhook.url is None) != (settings.webhook.secret is None):
        raise InvalidRequest(
            "IZWI_WEBHOOK_URL and IZWI_WEBHOOK_SECRET need each other", param="IZWI_WEBHOOK_URL"
        )
    return settings


def read_access(environ: Mapping[str, str]) -> Access:
    """Read the access settings; raises as `read_settings`."""
    return _read_group("access", environ).access


def read_log(environ: Mapping[str, str]) -> LogSettings:
    """Read what is logged, and how; raises as `read_settings`."""
    return _read_group("log", environ).log


def _read_group(group: str, environ: Mapping[str, str]) -> Settings:
    found = [one for one in VARIABLES if one.field.startswith(f"{group}.")]
    return reduce(lambda settings, one: _set(settings, one, environ), found, Settings())


def markdown() -> str:
    """Return docs/environment.md."""
    rows = (
        f"| `{one.name}` | {one.values} | {_default(one)} | {one.meaning} |" for one in VARIABLES
    )
    return "\n".join(
        [
            "# Environment variables",
            "",
            "`python -m izwi_api.environment` writes this page. Options of `izwi serve` override",
            "variables. `IZWI_SERVER` names the server that commands use. `IZWI_MANAGE_MODELS=1`",
            "and `IZWI_REQUIRE_CONSENT=1` act like `--manage-models` and `--require-consent`.",
            "",
            "| variable | value | default | what it sets |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _set(settings: Settings, one: Variable, environ: Mapping[str, str]) -> Settings:
    text = environ.get(one.name, "")
    if not text.strip():
        return settings
    value = one.parse(text, one.name)
    group, _, name = one.field.rpartition(".")
    if not group:
        return replace(settings, **{name: value})
    return replace(settings, **{group: replace(getattr(settings, group), **{name: value})})


def _default(one: Variable) -> str:
    if one.field == "home":
        return "`~/.izwi`"
    value = attrgetter(one.field)(Settings())
    if one.values == "MiB":
        value /= MEGABYTE
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, int | float) else ""


if __name__ == "__main__":
    print(markdown(), end="")
