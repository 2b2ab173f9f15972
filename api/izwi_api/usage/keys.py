"""API keys, kept as hashes in a file that several API servers read.

The file is TOML, one table a key, named after its owner:

    [alice]
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    requests_per_minute = 60        # these four are optional
    characters_per_day = 100000
    audio_seconds_per_day = 3600
    sessions = 4                    # live ones at once

Our keys are 256 random bits, so one SHA-256 is enough. Slow hashes protect passwords, which can be
guessed; random bits cannot, and each request would pay for the hash.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
import stat
import time
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TextIO

from izwi.errors import InvalidRequest
from izwi_api.usage.limits import Clock, KeyLimits

logger = logging.getLogger(__name__)

# The key of `--api-key` is logged under this name, which no table of a file can have.
SINGLE_KEY_NAME = "--api-key"
PREFIX = "izwi_"  # so that people and scanners recognize a leaked key
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LIMITS = ("requests_per_minute", "characters_per_day", "audio_seconds_per_day", "sessions")
_SETTINGS = {"sha256", "created", *_LIMITS}
_LOOK_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key.

    Attributes:
        name: The owner, for the audit log.
        digest: SHA-256 of the key, 32 bytes.
        limits: Its limits.
    """

    name: str
    digest: bytes = field(repr=False)
    limits: KeyLimits = field(default_factory=KeyLimits)

    @property
    def label(self) -> str:
        """What metrics call it: the first 8 of the 64 hexadecimal digits of `sha256`.

        Whoever may read metrics learns no names; the keys file says whose it is.
        """
        return self.digest.hex()[:8]


def new_key() -> str:
    """Return a new key of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(key: str) -> bytes:
    """Return the stored form of a key."""
    return sha256(key.encode("utf-8")).digest()


def check_key(key: str, param: str) -> None:
    """Refuse a key that no client can send.

    Raises:
        InvalidRequest: It is empty, or contains other than visible ASCII; the message does not
            quote it.
    """
    if not key or not all("!" <= character <= "~" for character in key):
        raise InvalidRequest(
            f"{param} must be of visible ASCII characters, without spaces", param=param
        )


def parse_keys(text: str, where: str) -> tuple[ApiKey, ...]:
    """Read the text of a keys file.

    Args:
        text: TOML, as above.
        where: Its name, for messages.

    Raises:
        InvalidRequest: It cannot be parsed, or a table has wrong settings. Unknown settings are
            errors, because a misspelt limit would be no limit.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{where} is not valid TOML: {error}") from error
    keys = tuple(_read_key(name, table, where) for name, table in tables.items())
    if len({key.digest for key in keys}) < len(keys):
        raise InvalidRequest(f"{where}: two names have the same key")
    return keys


def add_key(path: Path, name: str, limits: KeyLimits, now: datetime | None = None) -> str:
    """Make a key, append its hash to a keys file, and return the key, which is not stored.

    A missing file is created, readable by its owner only. Existing content is kept.

    Raises:
        InvalidRequest: The name is taken or invalid, a limit is not above 0, or the file is broken.
        OSError: The file cannot be written.
    """
    key = new_key()
    table = _as_table(name, key, limits, now or datetime.now(UTC))
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path, os.O_RDWR | os.O_APPEND | os.O_CREAT) as file:
        before = _text_of(file, path)
        if name in {known.name for known in parse_keys(before, str(path))}:
            raise InvalidRequest(f"{path} has a key {name!r} already", param="name")
        if before:
            table = ("\n" if before.endswith("\n") else "\n\n") + table
        parse_keys(before + table, str(path))
        _append(file.fileno(), table.encode(), path)
    return key


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Read a keys file. Raises as `KeyRing`."""
    return _read_file(path)


def remove_key(path: Path, name: str) -> None:
    """Remove a key from a keys file; the rest of the file is kept.

    Raises:
        InvalidRequest: The file has no such key, is broken, or is written so that it must be edited
            by hand.
        OSError: The file does not exist or cannot be written.
    """
    with _locked(path, os.O_RDWR) as file:
        before = _text_of(file, path)
        names = [key.name for key in parse_keys(before, str(path))]
        if name not in names:
            known = ", ".join(names) or "none"
            raise InvalidRequest(f"{path} has no key {name!r}; it has: {known}", param="name")
        after = _without_table(before, name)
        names.remove(name)
        if [key.name for key in parse_keys(after, str(path))] != names:
            raise InvalidRequest(f"the table [{name}] of {path} has to be removed by hand")
        # The file is replaced as a whole, so that readers never see a part of it.
        with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as scratch:
            try:
                os.fchmod(scratch.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode))
                scratch.write(after)
                scratch.flush()
                os.fsync(scratch.fileno())
                Path(scratch.name).replace(path)
            except BaseException:
                Path(scratch.name).unlink(missing_ok=True)
                raise


def _append(descriptor: int, content: bytes, path: Path) -> None:
    """Write all of `content`, or nothing: with a part of a table the file could not be read."""
    size = os.fstat(descriptor).st_size
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    except OSError as error:
        os.ftruncate(descriptor, size)
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def _locked(path: Path, flags: int) -> Generator[TextIO]:
    """Open a keys file, locked against other processes until the block ends."""
    import fcntl  # not available on Windows, where the rest of this module works

    while True:
        with os.fdopen(os.open(path, flags, 0o600), "r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                is_current = os.path.samestat(os.fstat(file.fileno()), path.stat())
            except FileNotFoundError:
                is_current = False
            if is_current:  # otherwise another process has replaced it meanwhile
                yield file
                return


def _text_of(file: TextIO, path: Path) -> str:
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path} is not valid TOML: it is not UTF-8") from error


def _without_table(text: str, name: str) -> str:
    """Remove a table with the blank lines before it; the next table keeps its comments."""
    lines = text.splitlines(keepends=True)
    headers = [index for index, line in enumerate(lines) if line.lstrip().startswith("[")]
    header = re.compile(rf"""\s*\[\s*(["']?){re.escape(name)}\1\s*\]""")
    for start, stop in pairwise([*headers, len(lines)]):
        if header.match(lines[start]):
            while stop < len(lines) and stop > start + 1 and lines[stop - 1].startswith("#"):
                stop -= 1
            while start and not lines[start - 1].strip():
                start -= 1
            kept = "".join(lines[:start]), "".join(lines[stop:])
            return "\n".join(part for part in kept if part)
    return text


class KeyRing:
    """The valid keys.

    Changes of the file take effect within a second. While it is broken or missing, the last valid
    keys remain valid, and the log says so.

    Args:
        path: The keys file, or None.
        single: Digest of one more key without limits, or None.
        clock: Monotonic seconds.

    Raises:
        InvalidRequest: The file is broken, or users other than its owner can write it.
        OSError: The file cannot be read.
    """

    def __init__(
        self, path: Path | None, single: bytes | None = None, clock: Clock = time.monotonic
    ):
        self._path, self._clock = path, clock
        self._single = () if single is None else (ApiKey(SINGLE_KEY_NAME, single),)
        self._keys = {key.name: key for key in self._single}
        self._looked_s = clock()
        self._seen: tuple[int, ...] = ()
        if path is not None:
            self._seen = _signature(path)
            self._accept(_read_file(path))

    @property
    def is_open(self) -> bool:
        """Whether no key is required."""
        return self._path is None and not self._single

    def find(self, presented: str) -> ApiKey | None:
        """Return the presented key, or None.

        All digests are compared, each in constant time, so that timing shows neither how close a
        wrong key was nor to which key.
        """
        self._look()
        digest = digest_of(presented)
        found = None
        for key in self._keys.values():
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def named(self, name: str) -> ApiKey | None:
        """Return the key with a name, or None."""
        self._look()
        return self._keys.get(name)

    def current(self, key: ApiKey) -> ApiKey | None:
        """Return a key with its limits of now; None if it was removed, or has another secret."""
        known = self.named(key.name)
        return known if known is not None and known.digest == key.digest else None

    def _accept(self, keys: tuple[ApiKey, ...]) -> None:
        self._keys = {key.name: key for key in (*self._single, *keys)}

    def _look(self) -> None:
        """Read the file again if it has changed; check at most once a second."""
        now_s = self._clock()
        if self._path is None or now_s - self._looked_s < _LOOK_INTERVAL_S:
            return
        self._looked_s = now_s
        signature = _signature(self._path)
        if signature == self._seen:
            return
        # Taken before reading, so that a change during reading is read next time.
        self._seen = signature
        try:
            self._accept(_read_file(self._path))
        except (OSError, InvalidRequest) as error:
            logger.error("the keys stay as they were: %s", error)
            return
        logger.info("read %s again: %d keys", self._path, len(self._keys) - len(self._single))


def _signature(path: Path) -> tuple[int, ...]:
    """Return what changes whenever a file does; empty if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode


def _read_file(path: Path) -> tuple[ApiKey, ...]:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o022:
        raise InvalidRequest(f"others may write {path}; run: chmod 600 {path}")
    if mode & 0o044:
        logger.warning("others may read %s (only hashes are in it); better: chmod 600", path)
    with path.open(encoding="utf-8") as file:
        return parse_keys(_text_of(file, path), str(path))


def _read_key(name: str, table: Any, where: str) -> ApiKey:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{where}: {name[:64]!r} cannot be the name of a key")
    if not isinstance(table, dict):
        raise InvalidRequest(f"{where}: {name} must be a table, like [{name}]")
    unknown = sorted(table.keys() - _SETTINGS)
    if unknown:
        raise InvalidRequest(f"{where}: [{name}] has an unknown setting {unknown[0][:64]!r}")
    digest = table.get("sha256")
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise InvalidRequest(f"{where}: sha256 of [{name}] must be 64 hexadecimal digits")
    limits = KeyLimits(
        _limit(table, "requests_per_minute", name, int),
        _limit(table, "characters_per_day", name, int),
        _limit(table, "audio_seconds_per_day", name, int, float),
        _limit(table, "sessions", name, int),
    )
    return ApiKey(name, bytes.fromhex(digest), limits)


def _limit(table: dict[str, Any], setting: str, name: str, *kinds: type) -> Any:
    value = table.get(setting)
    if value is not None and (type(value) not in kinds or not 0 < value < float("inf")):
        raise InvalidRequest(f"{setting} of [{name}] must be a number above 0", param=setting)
    return value


def _as_table(name: str, key: str, limits: KeyLimits, now: datetime) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            "a name is up to 64 letters, digits, '-' and '_', and starts with a letter or a digit",
            param="name",
        )
    lines = [
        f"[{name}]",
        f'sha256 = "{digest_of(key).hex()}"',
        f"created = {now:%Y-%m-%dT%H:%M:%SZ}",
    ]
    for setting in _LIMITS:
        value = getattr(limits, setting)
        if value is not None:
            lines.append(f"{setting} = {value}")
    return "\n".join(lines) + "\n"
