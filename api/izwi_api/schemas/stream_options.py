"""The key `stream_options`: what a stream contains besides the answer."""

from __future__ import annotations

from izwi_api.schemas.chat_messages import Strict


class StreamOptions(Strict):
    """Options of a stream of a chat completion.

    Attributes:
        include_usage: Whether the stream ends with its usage.
        include_obfuscation: Whether random characters hide the size of each piece; OpenAI's default
            is true, ours is false.
    """

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ResponseStreamOptions(Strict):
    """Options of a stream of a response.

    Attributes:
        include_obfuscation: As in `StreamOptions`.
    """

    include_obfuscation: bool | None = None


def includes_usage(options: StreamOptions | None) -> bool:
    """Return whether a stream ends with its usage."""
    return options is not None and bool(options.include_usage)


def obfuscates(options: StreamOptions | ResponseStreamOptions | None) -> bool:
    """Return whether the size of a stream's pieces is hidden."""
    return options is not None and bool(options.include_obfuscation)
