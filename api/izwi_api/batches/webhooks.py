"""Tell the operator's webhook that a batch has ended: Standard Webhooks, as OpenAI signs them.

An event is stored with the end of its batch, so a crash loses none; what was being sent when the
process died is sent again, with the same id. Only the operator chooses the address, a name must
lead to public addresses, and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import h11

from izwi.errors import BatchNotFound
from izwi_api.batches.store import BatchStore
from izwi_api.fair_timeout import fair_timeout
from izwi_api.http.audit import AuditLog
from izwi_api.voices.reference_connections import HostConnector, NotReached, reason_of
from izwi_api.voices.reference_hosts import ReferenceUrl

logger = logging.getLogger(__name__)

# Waits before each further attempt: 55 hours in total.
RETRY_S = (5, 30, 120, 600, 1800, 3600, 4 * 3600, 8 * 3600, 16 * 3600, 24 * 3600)
_CONNECT_S, _EXCHANGE_S = 5.0, 15.0
# No other process sends an event meanwhile; one that died while it sent it is followed after that.
_CLAIM_S = 60.0
_MAX_HEAD_BYTES, _READ_BYTES = 16_384, 4096


def sign(secret: bytes, event_id: str, sent_s: int, body: bytes) -> str:
    """Return the value of `webhook-signature`: HMAC-SHA256 of id, time and body.

    Source: https://github.com/standard-webhooks/standard-webhooks (specification, v1 signatures).

    Args:
        secret: The key, decoded.
        event_id: Value of `webhook-id`.
        sent_s: Value of `webhook-timestamp`, seconds since 1970.
        body: The body as it is sent.
    """
    content = f"{event_id}.{sent_s}.".encode() + body
    digest = hmac.new(secret, content, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


class WebhookSender:
    """Sends the events of batches that are due.

    Args:
        store: Has the events.
        url: Where to.
        secret: Signs them.
        count: Called with the outcome of each attempt: "delivered", "failed" or "given_up".
        audit_log: Gets a line for each attempt, or None.
    """

    def __init__(
        self,
        store: BatchStore,
        url: ReferenceUrl,
        secret: bytes,
        count: Callable[[str], None],
        audit_log: AuditLog | None = None,
    ):
        self._store, self._url, self._secret = store, url, secret
        self._count, self._audit_log = count, audit_log
        self._connector = HostConnector("IZWI_WEBHOOK_URL")

    def stop(self) -> None:
        """Stop resolving names."""
        self._connector.stop()

    async def send_due(self) -> None:
        """Send what is due, one after the other. Raises OSError and sqlite3.Error."""
        while (due := await asyncio.to_thread(self._store.claim_event, _CLAIM_S)) is not None:
            event_id, body, tries = due
            began_s = time.time()
            try:
                status = await self._post(event_id, body)
            except (NotReached, OSError, h11.RemoteProtocolError) as error:
                status, why = None, reason_of(error)
            else:
                why = f"it answered {status}"
            await asyncio.to_thread(self._note, body, status, began_s)
            if status is not None and 200 <= status < 300:
                self._count("delivered")
                await asyncio.to_thread(self._store.forget_event, event_id)
            else:
                await self._try_again(event_id, tries, why)

    async def _try_again(self, event_id: str, tries: int, why: str) -> None:
        if tries > len(RETRY_S):
            self._count("given_up")
            logger.error("the webhook got no event %s in %d attempts: %s", event_id, tries, why)
            await asyncio.to_thread(self._store.forget_event, event_id)
            return
        self._count("failed")
        wait_s = RETRY_S[tries - 1]
        logger.warning("the webhook got no event %s, again in %g s: %s", event_id, wait_s, why)
        await asyncio.to_thread(self._store.postpone_event, event_id, wait_s)

    async def _post(self, event_id: str, body: bytes) -> int:
        """Send one event and return the status.

        Raises:
            NotReached: No connection, or no response.
            OSError: The same, or it took too long.
            RemoteProtocolError: The response is not HTTP.
        """
        sent_s = int(time.time())
        headers = [
            ("host", self._url.host.authority),
            ("user-agent", "izwi"),
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
            ("webhook-id", event_id),
            ("webhook-timestamp", str(sent_s)),
            ("webhook-signature", sign(self._secret, event_id, sent_s, body)),
        ]
        async with fair_timeout(_EXCHANGE_S):
            reader, writer = await self._connector.connect(self._url.host, _CONNECT_S)
            try:
                connection = h11.Connection(h11.CLIENT, _MAX_HEAD_BYTES)
                head = h11.Request(method="POST", target=self._url.target, headers=headers)
                writer.write(connection.send(head) or b"")
                writer.write(connection.send(h11.Data(body)) or b"")
                connection.send(h11.EndOfMessage())
                while not isinstance(event := connection.next_event(), h11.Response):
                    if event is h11.NEED_DATA:
                        connection.receive_data(await reader.read(_READ_BYTES))
                    elif not isinstance(event, h11.InformationalResponse):
                        raise NotReached("the connection was closed without a response")
                return event.status_code
            finally:
                # Not `close`, which would wait for the other side.
                writer.transport.abort()

    def _note(self, body: bytes, status: int | None, began_s: float) -> None:
        """Write a line of the audit log."""
        if self._audit_log is None:
            return
        event: dict[str, Any] = json.loads(body)
        try:
            owner = self._store.batch(None, event["data"]["id"]).owner
        except BatchNotFound:
            owner = ""
        began = datetime.fromtimestamp(began_s, UTC).isoformat(timespec="milliseconds")
        self._audit_log.write(
            {
                "time": began.replace("+00:00", "Z"),
                "request_id": event["id"],
                "key": owner or None,
                "method": "WEBHOOK",
                "route": event["type"],
                "status": status,
                "complete": status is not None,
                "duration_s": round(time.time() - began_s, 4),
                "bytes_out": len(body),
            }
        )
