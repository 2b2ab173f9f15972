"""Vonage's Voice API: a webhook that answers with an NCCO, and the WebSocket of the call."""

from __future__ import annotations

import json
import re

from fastapi import APIRouter, Request, WebSocket
from starlette.responses import JSONResponse, Response

from izwi_api.http.auth import TELEPHONY
from izwi_api.realtime.protocol.formats import WireFormat
from izwi_api.sessions.core import Message
from izwi_api.vendors.telephony.call import (
    CallerAudio,
    CallEvent,
    Ended,
    KeyPressed,
    MarkPlayed,
    Started,
)
from izwi_api.vendors.telephony.live_call import address_of_stream, is_greeted, key_of, serve_call
from izwi_api.vendors.vendor import Vendor

router = APIRouter()
_PATH = f"{TELEPHONY}vonage"
_CONTENT_TYPE = "audio/l16;rate=16000"
_RATE = re.compile(r"rate=(8000|16000|24000)")


@router.get(_PATH, response_class=Response)
@router.post(_PATH, response_class=Response)
async def answer_call(request: Request) -> Response:
    """Answer a call: connect it to the WebSocket below."""
    endpoint = {
        "type": "websocket",
        "uri": await address_of_stream(request, "vonage"),
        "content-type": _CONTENT_TYPE,
        "headers": {"greet": "1"} if is_greeted(request) else {},
    }
    return JSONResponse([{"action": "connect", "endpoint": [endpoint]}])


@router.websocket(_PATH)
@router.websocket(_PATH + "/{secret}")
async def stream_call(socket: WebSocket) -> None:
    """Talk with a caller."""
    await serve_call(socket, Vonage)


class Vonage:
    """Vonage's messages in one call: audio in binary messages, 16-bit PCM, and JSON."""

    def read(self, message: Message) -> CallEvent | None:
        """Return what a message says. Raises ValueError, KeyError and TypeError."""
        if isinstance(message, bytes):
            return CallerAudio(message)
        fields = json.loads(message)
        match fields["event"]:
            case "websocket:connected":
                found = _RATE.search(fields["content-type"])
                if found is None:
                    raise ValueError("no rate that is supported")
                return Started(WireFormat("audio/l16", int(found[1]), 2), fields)
            case "websocket:notify":
                return MarkPlayed(str(fields["payload"]["mark"]))
            case "websocket:dtmf":
                return KeyPressed(str(fields["digit"]))
            case "websocket:disconnected":
                return Ended()
        return None

    def audio(self, data: bytes) -> Message:
        """Return the message that plays audio."""
        return data

    def mark(self, name: str) -> Message:
        """Return the message that asks for an echo."""
        return json.dumps({"action": "notify", "payload": {"mark": name}})

    def clear(self) -> Message:
        """Return the message that drops audio that was not played."""
        return json.dumps({"action": "clear"})


VENDOR = Vendor(prefix=_PATH, routers=(router,), key_of=key_of)
