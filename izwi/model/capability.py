"""What a checkpoint can do. API servers ask for a capability, never for a family."""

from __future__ import annotations

from enum import StrEnum


class Capability(StrEnum):
    """One thing that a model can be asked for; the values are those of `/v1/models`."""

    SPEAK = "speech"
    TRANSCRIBE = "transcription"
    ALIGN = "alignment"
    CHAT = "chat"
    CONVERSE = "conversation"  # speech to speech
    SEE = "vision"  # images in chat
