"""A Python client: for a server, or for models in this process, through the same code.

`Client` is for scripts and notebooks, `AsyncClient` for asyncio; docs/python.md shows both. The
command line uses `AsyncClient`. Without a server, the same app runs in this process, behind an ASGI
transport instead of sockets. torch is imported only if this process loads models.
"""

from izwi.model.alignment import AlignedWord
from izwi_api.client.async_client import AsyncClient
from izwi_api.client.audio import Audio
from izwi_api.client.blocking_client import BlockingStream, Client
from izwi_api.client.streams import (
    Answer,
    ChatDelta,
    ResponseStream,
    Segment,
    SpeechDetails,
    ToolCall,
    Transcript,
    TranscriptUpdate,
    Word,
)
from izwi_api.client.talk import SpokenAnswer, SpokenDelta
from izwi_api.runtime_options import RuntimeOptions

__all__ = [
    "AlignedWord",
    "Answer",
    "AsyncClient",
    "Audio",
    "BlockingStream",
    "ChatDelta",
    "Client",
    "ResponseStream",
    "RuntimeOptions",
    "Segment",
    "SpeechDetails",
    "SpokenAnswer",
    "SpokenDelta",
    "ToolCall",
    "Transcript",
    "TranscriptUpdate",
    "Word",
]
