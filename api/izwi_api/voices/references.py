"""Fetch reference clips, only from hosts that the operator listed.

Callers of speech endpoints can make this server send requests, so it connects as
`izwi_api.voices.reference_connections` says, and follows no redirects. The reason of a failure is
for the log; the caller learns only that the fetch failed.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence

import h11

from izwi.errors import InvalidRequest, Overloaded, ReferenceNotFetched
from izwi_api.fair_timeout import fair_timeout
from izwi_api.voices.reference_connections import HostConnector, NotReached, Resolve, reason_of
from izwi_api.voices.reference_hosts import (
    CLIP,
    OPTION,
    FetchPace,
    FileKind,
    ReferenceHost,
    ReferenceUrl,
    parse_url,
)

logger = logging.getLogger(__name__)

# Each holds up to one clip in memory.
MAX_FETCHES = 64
_MAX_HEAD_BYTES = 16_384
_READ_BYTES = 16_384
_MAX_INTERIM = 8  # responses with status 1xx
# A body in many small pieces costs too much time on an event loop that sends audio.
_FREE_CHUNKS, _MIN_CHUNK_BYTES = 2048, 16


class References:
    """Fetches clips.

    Args:
        hosts: The allowed hosts.
        max_bytes: Maximum size of a clip.
        pace: The minimum rate.
        resolve: Resolves a name; by default the system's resolver.
        tls: Verifies servers; by default with the system's certificates.
    """

    def __init__(
        self,
        hosts: Sequence[ReferenceHost] = (),
        max_bytes: int = 10 << 20,
        pace: FetchPace | None = None,
        *,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
    ):
        self._hosts = frozenset(hosts)
        self._max_bytes = max_bytes
        self._pace = pace or FetchPace()
        self._connector = HostConnector(OPTION, resolve, tls)
        self._num_fetching = 0

    def stop(self) -> None:
        """Stop resolving names."""
        self._connector.stop()

    async def fetch(self, address: str, kind: FileKind = CLIP) -> bytes:
        """Fetch the file at a URL.

        Args:
            address: The URL.
            kind: What it is.

        Raises:
            InvalidRequest: It is not a valid URL, or its host is not allowed.
            ReferenceNotFetched: It leads to an internal address, or no clip arrived in time, or a
                clip that is too large.
            Overloaded: Too many clips are being fetched.
        """
        url = parse_url(address, kind.param)
        if not self._hosts:
            raise InvalidRequest(
                f"{kind.param} is {kind.forms}; this server fetches URLs only "
                f"from hosts that it was started with (izwi serve {OPTION})",
                param=kind.param,
            )
        if url.host not in self._hosts:
            raise InvalidRequest(
                "this server was not started to fetch from the scheme, host and port "
                f"of the URL in {kind.param} (izwi serve {OPTION})",
                param=kind.param,
            )
        if self._num_fetching >= MAX_FETCHES:
            raise Overloaded(f"too many reference {kind.noun}s are being fetched")
        self._num_fetching += 1
        try:
            return await self._fetch(url, kind.accept)
        except (NotReached, OSError, ValueError, h11.RemoteProtocolError) as error:
            # (ValueError: a length of thousands of digits.)
            # A path may be a secret, so it is not logged.
            logger.info("no %s came from %s: %s", kind.noun, url.host.authority, reason_of(error))
            raise ReferenceNotFetched(
                f"the URL in {kind.param} did not return {kind.article} {kind.noun} of at most "
                f"{self._max_bytes} bytes in time; redirects are not followed",
                param=kind.param,
            ) from None
        finally:
            self._num_fetching -= 1

    async def _fetch(self, url: ReferenceUrl, accept: str) -> bytes:
        async with fair_timeout(self._pace.time_s(0)) as limit:
            reader, writer = await self._connector.connect(url.host, self._pace.grace_s)
            try:
                connection = h11.Connection(h11.CLIENT, _MAX_HEAD_BYTES)
                request = h11.Request(
                    method="GET", target=url.target, headers=_headers(url.host, accept)
                )
                writer.write(connection.send(request) or b"")
                connection.send(h11.EndOfMessage())
                clip = _Clip(self._max_bytes)
                while not clip.is_whole:
                    event = connection.next_event()
                    if event is h11.NEED_DATA:
                        limit.allow(self._pace.time_s(clip.num_bytes))
                        connection.receive_data(await reader.read(_READ_BYTES))
                    else:
                        clip.handle_event(event)
                return clip.content
            finally:
                # Not `close`, which would wait for the other side.
                writer.transport.abort()


class _Clip:
    """The part of a response that has arrived.

    Attributes:
        is_whole: The response is complete.
    """

    def __init__(self, max_bytes: int):
        self.is_whole = False
        self._max_bytes = max_bytes
        self._content = bytearray()
        self._num_chunks = self._num_interim = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the clip so far."""
        return len(self._content)

    @property
    def content(self) -> bytes:
        """The clip."""
        return bytes(self._content)

    def handle_event(self, event: object) -> None:
        """Handle the connection's next event. Raises NotReached."""
        if isinstance(event, h11.InformationalResponse):
            self._num_interim += 1
            if self._num_interim > _MAX_INTERIM:
                raise NotReached("it sent too many interim responses")
        elif isinstance(event, h11.Response):
            self._check_head(event)
        elif isinstance(event, h11.Data):
            self._add(event)
        elif isinstance(event, h11.EndOfMessage):
            self.is_whole = True
        else:
            raise NotReached("the connection was closed, or the response is not HTTP")

    def _check_head(self, head: h11.Response) -> None:
        if head.status_code != 200:
            raise NotReached(f"it answered {head.status_code}")
        for name, value in head.headers:
            # A compressed body could expand to any size.
            if name == b"content-encoding" and value.strip().lower() != b"identity":
                raise NotReached("the response is compressed")
            if name == b"content-length" and int(value) > self._max_bytes:
                raise NotReached(f"it has more than {self._max_bytes} bytes")

    def _add(self, piece: h11.Data) -> None:
        self._content += piece.data
        if len(self._content) > self._max_bytes:
            raise NotReached(f"it has more than {self._max_bytes} bytes")
        self._num_chunks += piece.chunk_end
        if self._num_chunks > _FREE_CHUNKS + len(self._content) / _MIN_CHUNK_BYTES:
            raise NotReached("the response arrived in too many small pieces")


def _headers(host: ReferenceHost, accept: str) -> list[tuple[str, str]]:
    return [
        ("host", host.authority),
        ("user-agent", "izwi"),
        ("accept", accept),
        ("accept-encoding", "identity"),
        ("connection", "close"),
    ]
