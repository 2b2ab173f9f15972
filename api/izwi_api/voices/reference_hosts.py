"""Parse the hosts from which reference clips may be fetched, and say at which rate. Pure.

A URL is parsed once, strictly, and the connection uses these parts. Its text is not parsed again,
so no second parser can see another host than the one that was checked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import NamedTuple

from izwi.errors import InvalidRequest

PARAM = "ref_audio"
OPTION = "--reference-host"


class FileKind(NamedTuple):
    """What is fetched, for messages and for the request.

    Attributes:
        param: The field that has the URL.
        forms: What the field may be besides a URL.
        article: Before the noun.
        noun: The file.
        accept: Accept header.
    """

    param: str
    forms: str
    article: str
    noun: str
    accept: str


CLIP = FileKind(PARAM, "base64 or a data: URL", "a", "clip", "audio/*, */*;q=0.5")
IMAGE = FileKind("image_url", "a data: URL", "an", "image", "image/*, */*;q=0.5")

_MAX_URL_CHARS = 4096
_MAX_NAME_CHARS = 253
_PORTS = {"https": 443, "http": 80}

# Except "data:": base64 clips and data: URLs contain no address.
_ADDRESS = re.compile(r"\s*(?!data:)[a-z][a-z0-9+.-]*:", re.ASCII | re.IGNORECASE)
_AUTHORITY = r"(\[[0-9a-f:.]+\]|[^\[\]:/?#@\\%\s]+)(?::([1-9][0-9]{0,4}))?"
_ENTRY = re.compile(rf"(?:(https?)://)?{_AUTHORITY}", re.ASCII | re.IGNORECASE)
# No fragment: it is not sent, and other parsers look for the host after it.
_CHARACTER = r"(?:[a-z0-9\-._~:/@!$&'()*+,;=\[\]]|%[0-9a-f]{2})"
_TARGET = rf"(?:/{_CHARACTER}*)?(?:\?(?:{_CHARACTER}|\?)*)?"
_URL = re.compile(rf"(https?)://{_AUTHORITY}({_TARGET})", re.ASCII | re.IGNORECASE)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# Resolvers accept "2130706433", "127.1" and "0x7f.1" as IPv4 addresses.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

_PUBLIC_V6 = ip_network("2000::/3")
_NAT64 = ip_network("64:ff9b::/96")
# Special networks, or with an embedded IPv4 address that a relay would forward to; `is_global` of
# older Pythons does not know all of them.
# Pythons does not know all of them.
_SPECIAL = tuple(
    map(ip_network, ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16", "3fff::/20"))
)


@dataclass(frozen=True, slots=True)
class FetchPace:
    """Time limits for fetching a reference clip.

    Attributes:
        grace_s: Seconds from the start, for name, connection and headers, before the rate counts.
        min_bytes_per_s: Bytes of the clip that add one second.
        max_s: Seconds in total.
    """

    grace_s: float = 5.0
    min_bytes_per_s: float = 65_536.0
    max_s: float = 10.0

    def time_s(self, num_bytes: int) -> float:
        """Return the time limit, in seconds, after so many received bytes."""
        return min(self.max_s, self.grace_s + num_bytes / self.min_bytes_per_s)


@dataclass(frozen=True, slots=True)
class ReferenceHost:
    """A server from which clips may be fetched.

    Attributes:
        scheme: "https", or "http" if the operator wrote so.
        name: ASCII, lower case, as it is resolved; or an IP address as `ipaddress` formats it.
        port: The only port to connect to.
    """

    scheme: str
    name: str
    port: int

    @property
    def is_literal(self) -> bool:
        """Whether it is an IP address, which is not resolved."""
        return ":" in self.name or self.name.rpartition(".")[2].isdigit()

    @property
    def authority(self) -> str:
        """The name in the form of the Host header."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.port == _PORTS[self.scheme] else f"{name}:{self.port}"


@dataclass(frozen=True, slots=True)
class ReferenceUrl:
    """The URL of a clip.

    Attributes:
        host: Its host.
        target: Path and query, ASCII.
    """

    host: ReferenceHost
    target: str


def is_address(text: str) -> bool:
    """Whether a `ref_audio` is a URL, and not the clip itself."""
    return _ADDRESS.match(text[:64]) is not None


def parse_host(text: str, param: str) -> ReferenceHost:
    """Parse an entry of the allow-list: HOST[:PORT], optionally after https:// or http://.

    Args:
        text: The entry.
        param: The name of the setting, for messages.

    Raises:
        InvalidRequest: It is invalid, or could never match.
    """
    match = _ENTRY.fullmatch(text)
    host = _host_of(*match.groups()) if match else None
    if host is None:
        raise InvalidRequest(
            f"{param} must be like 'clips.example', 'clips.example:8443' or "
            f"'http://10.0.0.5:9000', without a path, got {text!r}",
            param=param,
        )
    if f".{host.name}".endswith(".localhost"):
        raise InvalidRequest(
            f"{param}: a name never leads to this machine; give the address, like 127.0.0.1",
            param=param,
        )
    return host


def parse_url(text: str, param: str = PARAM) -> ReferenceUrl:
    """Parse the URL of a file, which `param` has.

    Raises:
        InvalidRequest: It is not an http or https URL of a host and a path, or contains anything
            else: a user, a fragment, a backslash, white space, an IP address in another notation.
    """
    match = _URL.fullmatch(text) if len(text) <= _MAX_URL_CHARS else None
    host = _host_of(*match.groups()[:3]) if match else None
    if match is None or host is None:
        raise InvalidRequest(
            f"{param} is not a plain https URL: a host and a path of at most "
            f"{_MAX_URL_CHARS} characters",
            param=param,
        )
    target = match[4]
    return ReferenceUrl(host, target if target.startswith("/") else "/" + target)


def is_public(address: str) -> bool:
    """Whether an IP address is public, also within IPv6 forms of an IPv4 address."""
    ip = ip_address(address)
    if isinstance(ip, IPv6Address):
        inner = ip.ipv4_mapped
        if ip in _NAT64:
            inner = IPv4Address(int(ip) & 0xFFFF_FFFF)
        if inner is None and ip not in _PUBLIC_V6:
            return False
        ip = inner or ip
    if any(ip in network for network in _SPECIAL if network.version == ip.version):
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


def _host_of(scheme: str | None, name: str, port: str | None) -> ReferenceHost | None:
    scheme = (scheme or "https").lower()
    number = int(port) if port else _PORTS[scheme]
    canonical = _canonical_name(name)
    if canonical is None or number > 65_535:
        return None
    return ReferenceHost(scheme, canonical, number)


def _canonical_name(text: str) -> str | None:
    """Return a host in the form in which it is compared, resolved and requested."""
    if len(text) > _MAX_NAME_CHARS:
        return None
    try:
        if text.startswith("["):
            return str(IPv6Address(text[1:-1]))
        name = text.encode("idna").decode("ascii").lower()
        labels = name.split(".")
        if _NUMBER.fullmatch(labels[-1]):
            return str(IPv4Address(name))
    except ValueError:
        return None
    is_name = len(name) <= _MAX_NAME_CHARS and all(map(_LABEL.fullmatch, labels))
    return name if is_name else None
