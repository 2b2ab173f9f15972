"""Short-lived keys for clients that must not have a real one, such as browsers.

A secret contains what it allows, signed with a key that all processes of this server share. So each
of them can check it, and none has to store it:

    ek_<payload>.<HMAC-SHA256 of it>, both in base64url

It gives access to live sessions only (/v1/realtime, and telephone calls), and counts against the
limits of the key that requested it.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from izwi.errors import TooLarge

PREFIX = "ek_"
_FILE = "realtime_key"
_KEY_BYTES = 32
# It is sent in a header.
_MAX_PAYLOAD_BYTES = 4 << 10


@dataclass(frozen=True, slots=True)
class ClientSecret:
    """The content of a secret.

    Attributes:
        key_name: Name of the API key that requested it; None if no key is required.
        session: Initial settings of its sessions.
        session: Settings with which its sessions begin.
    """

    expires_at: int
    key_name: str | None
    session: dict[str, Any]


class ClientSecrets:
    """Makes and checks secrets.

    Args:
        folder: Folder of the signing key, shared by all processes of a server.
        clock: Seconds since 1970.
    """

    def __init__(self, folder: Path, clock: Callable[[], float]):
        self._path, self._clock = folder / _FILE, clock
        self._key: bytes | None = None

    def make(self, secret: ClientSecret) -> str:
        """Return a new secret.

        Raises:
            TooLarge: The session has too many settings.
            OSError: The signing key cannot be stored.
        """
        fields = [secret.expires_at, secret.key_name, secret.session]
        payload = json.dumps(fields, separators=(",", ":")).encode()
        if len(payload) > _MAX_PAYLOAD_BYTES:
            raise TooLarge(
                f"the session of a client secret has at most {_MAX_PAYLOAD_BYTES} bytes; send the "
                "rest in session.update",
                param="session",
            )
        return f"{PREFIX}{_text(payload)}.{_text(self._sign(payload))}"

    def read(self, value: str) -> ClientSecret | None:
        """Return the content of a secret; None if it is not ours, or has expired."""
        payload_text, _, signature_text = value.removeprefix(PREFIX).partition(".")
        try:
            payload, signature = _bytes(payload_text), _bytes(signature_text)
        except (binascii.Error, ValueError):
            return None
        if not hmac.compare_digest(self._sign(payload), signature):
            return None
        secret = ClientSecret(*json.loads(payload))
        return secret if self._clock() < secret.expires_at else None

    def _sign(self, payload: bytes) -> bytes:
        if self._key is None:
            self._key = _shared_key(self._path)
        return hmac.digest(self._key, payload, sha256)


def _shared_key(path: Path) -> bytes:
    """Return the key in a file; the first process creates it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        # a link creates the complete file atomically, and fails if another process was faster
        with NamedTemporaryFile(dir=path.parent) as scratch:
            scratch.write(secrets.token_bytes(_KEY_BYTES))
            scratch.flush()
            with suppress(FileExistsError):
                os.link(scratch.name, path)
    return path.read_bytes()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
