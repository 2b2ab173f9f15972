"""Twilio's media streams: a webhook that answers with TwiML, and the WebSocket of the call."""

from __future__ import annotations

import base64
import json
from xml.sax.saxutils import quoteattr

from fastapi import APIRouter, Request, WebSocket
from starlette.responses import Response

from izwi_api.http.auth import TELEPHONY
from izwi_api.realtime.protocol.formats import FORMATS
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
_PATH = f"{TELEPHONY}twilio"
_WIRE = FORMATS["audio/pcmu"]  # 8 kHz mu-law; there is no other


@router.get(_PATH, response_class=Response)
@router.post(_PATH, response_class=Response)
async def answer_call(request: Request) -> Response:
    """Answer a call: connect it to the WebSocket below."""
    address = await address_of_stream(request, "twilio")
    greeting = '<Parameter name="greet" value="1"/>' if is_greeted(request) else ""
    stream = f"<Stream url={quoteattr(address)}>{greeting}</Stream>"
    content = (
        f'<?xml version="1.0" encoding="UTF-8"?><Response><Connect>{stream}</Connect></Response>'
    )
    return Response(content, media_type="application/xml")


@router.websocket(_PATH)
@router.websocket(_PATH + "/{secret}")
async def stream_call(socket: WebSocket) -> None:
    """Talk with a caller."""
    await serve_call(socket, Twilio)


class Twilio:
    """Twilio's messages in one call: JSON, with audio in base64."""

    def __init__(self) -> None:
        self._stream = ""  # its id, which our messages repeat

    def read(self, message: Message) -> CallEvent | None:
        """Return what a message says. Raises ValueError, KeyError and TypeError."""
        fields = json.loads(message)
        match fields["event"]:
            case "start":
                self._stream = str(fields["start"]["streamSid"])
                return Started(_WIRE, dict(fields["start"].get("customParameters") or {}))
            case "media":
                return CallerAudio(base64.b64decode(fields["media"]["payload"], validate=True))
            case "mark":
                return MarkPlayed(str(fields["mark"]["name"]))
            case "dtmf":
                return KeyPressed(str(fields["dtmf"]["digit"]))
            case "stop":
                return Ended()
        return None

    def audio(self, data: bytes) -> Message:
        """Return the message that plays audio."""
        payload = base64.b64encode(data).decode("ascii")
        return self._message("media", media={"payload": payload})

    def mark(self, name: str) -> Message:
        """Return the message that asks for an echo."""
        return self._message("mark", mark={"name": name})

    def clear(self) -> Message:
        """Return the message that drops audio that was not played."""
        return self._message("clear")

    def _message(self, event: str, **fields: object) -> Message:
        return json.dumps({"event": event, "streamSid": self._stream, **fields})


VENDOR = Vendor(prefix=_PATH, routers=(router,), key_of=key_of)
