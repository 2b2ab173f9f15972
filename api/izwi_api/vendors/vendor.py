"""What the server needs to know of a vendor's API."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.datastructures import Headers
from starlette.types import Scope

# (the error object of our response, id of the request) -> the vendor's body
ErrorBody = Callable[[Mapping[str, Any], str], dict[str, Any]]
# Returns the key that a request presents in the vendor's way; None if it presents none so.
KeyOf = Callable[[Scope], str | None]


@dataclass(frozen=True, slots=True)
class Vendor:
    """One vendor's API.

    Attributes:
        prefix: All its paths begin with this.
        routers: Its endpoints.
        key_of: Reads its keys.
        error_body: Writes its errors; None for OpenAI's format.
    """

    prefix: str
    routers: tuple[APIRouter, ...]
    key_of: KeyOf
    error_body: ErrorBody | None = None


def key_of_header(name: str) -> KeyOf:
    """Return what reads a key from a header of its own."""

    def key_of(scope: Scope) -> str | None:
        return Headers(scope=scope).get(name)

    return key_of


def authorization_of(scope: Scope, scheme: str) -> str | None:
    """Return the credentials of a scheme in the header `authorization`, or None."""
    given, _, credentials = Headers(scope=scope).get("authorization", "").partition(" ")
    return credentials.strip() if given.lower() == scheme else None


def password_of(scope: Scope) -> str | None:
    """Return the password of HTTP's Basic authentication, or None."""
    credentials = authorization_of(scope, "basic")
    if credentials is None:
        return None
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""  # a key, but no valid one
