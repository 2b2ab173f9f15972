"""Who may reach a server that requires no key."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

from izwi.errors import InvalidRequest
from izwi_api.settings import Access


def check_exposure(host: str, access: Access, *, insecure: bool) -> None:
    """Refuse a public address without authentication.

    Raises:
        InvalidRequest: The address is public, no key is required, and `--insecure` is not given.
    """
    if access.requires_key or insecure or is_loopback(host):
        return
    raise InvalidRequest(
        f"refusing to listen on {host or 'all addresses'} without a key: give --api-key or "
        "--api-keys, or --insecure",
        param="host",
    )


def allowed_hosts(host: str, access: Access, allowed: Sequence[str] = ()) -> tuple[str, ...] | None:
    """Return the allowed host names; None for every name.

    On a loopback address without a key, other names come from pages that use DNS rebinding.
    """
    names = tuple(allowed) + (access.allowed_hosts or ())
    if names or (is_loopback(host) and not access.requires_key):
        return names
    return None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
