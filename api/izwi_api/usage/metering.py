"""Meter the usage of models: what a request takes is reserved when it opens.

The middleware creates a `Usage` for each HTTP request or WebSocket. Whatever opens a request to the
models owns a `Charge` of it, for what it takes of the caller's quotas.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from izwi_api.usage.limits import KeyLimits, Level, Meter

# Sample rate of audio that models read.
_HEARD_RATE = 16_000
# Text that is spoken while it is written reaches the engine as ids; an English word piece has about
# this many characters.
CHARACTERS_PER_ID = 4


class Usage:
    """The usage of one HTTP request or WebSocket so far.

    Attributes:
        key_name: The caller's key; None if no key is required.
        model: The model that it used last, by the name under which it is served, or None.
        characters: Of text to speak, and of conversations to answer.
        heard_s: Seconds of audio to transcribe.
        spoken_s: Seconds of generated audio.
    """

    def __init__(
        self,
        key_name: str | None = None,
        meter: Meter | None = None,
        current_limits: Callable[[], KeyLimits | None] | None = None,
    ):
        """Start without usage.

        Args:
            key_name: The caller's key.
            meter: The meter of that key.
            current_limits: Returns the key's limits of now, or None if it was removed. Without it
                the key stays as it is.
        """
        self.key_name, self._current_limits = key_name, current_limits
        self.model: str | None = None
        self.characters = 0
        self.heard_s = 0.0
        self.spoken_s = 0.0
        self._meter = meter

    def charge(self, *, characters: int = 0, heard_s: float = 0.0) -> None:
        """Charge for input before it is processed.

        Raises:
            QuotaExceeded: The key has not enough left today; nothing is charged.
        """
        if self._meter is not None:
            self._meter.charge({"characters": characters, "audio-seconds": heard_s})
        self.characters += characters
        self.heard_s += heard_s

    def refund(self, *, characters: int = 0, heard_s: float = 0.0) -> None:
        """Refund a charge for input that was refused."""
        if self._meter is not None:
            self._meter.refund({"characters": characters, "audio-seconds": heard_s})
        self.characters -= characters
        self.heard_s -= heard_s

    def keeps_access(self) -> bool:
        """Apply changed limits of the key; return whether the key is still valid."""
        if self._meter is None or self._current_limits is None:
            return True
        limits = self._current_limits()
        if limits is not None:
            self._meter.change(limits)
        return limits is not None

    @property
    def max_sessions(self) -> int | None:
        """Maximum number of live sessions of the key; None without a limit of its own."""
        return self._meter.limits.sessions if self._meter is not None else None

    def headers(self) -> Mapping[str, str]:
        """Return the x-ratelimit-* headers of the key."""
        return self._meter.headers() if self._meter is not None else {}

    def levels(self) -> list[Level]:
        """Return the rest of each limit of the key."""
        return self._meter.levels() if self._meter is not None else []


# The usage of the call in this context; tasks that it starts inherit it.
current_usage: ContextVar[Usage | None] = ContextVar("current_usage", default=None)


def key_name() -> str:
    """Return the name of the caller's key; empty if none is required."""
    usage = current_usage.get()
    return "" if usage is None else usage.key_name or ""


def note_model(name: str) -> None:
    """Note that the call in this context has used a model."""
    usage = current_usage.get()
    if usage is not None:
        usage.model = name


def seconds(num_samples: int) -> float:
    """Return the seconds of audio that models read, for a charge."""
    return num_samples / _HEARD_RATE


class Charge:
    """What one request takes of its caller's quotas.

    It is reserved when the request opens, grows while input arrives, and is settled once: after
    that it does not change. What the engine's queue refuses is refunded, other work is not. Without
    a caller, as in commands, it counts nothing.

    Args:
        characters: Of text to speak, and of conversations to answer.
        heard_s: Seconds of audio to transcribe.
        is_free: The work is part of another request, or its caller charges for it itself. Only the
            generated audio is counted.

    Attributes:
        characters: Reserved and not refunded.
        heard_s: As above.

    Raises:
        QuotaExceeded: The key has not enough left today; nothing is charged.
    """

    def __init__(self, *, characters: int = 0, heard_s: float = 0.0, is_free: bool = False):
        self._usage = current_usage.get()
        self._is_settled = is_free
        self.characters, self.heard_s = 0, 0.0
        self.add(characters=characters, heard_s=heard_s)

    @classmethod
    def together(cls, count: int, *, characters: int) -> list[Charge]:
        """Return equal charges of requests that start together, all or none; raises as above."""
        whole = cls(characters=count * characters)
        charges = [cls() for _ in range(count)]
        for charge in charges if whole.characters else ():
            charge.characters = characters
        return charges

    def add(self, *, characters: int = 0, heard_s: float = 0.0) -> None:
        """Reserve more, for input that has arrived. Raises QuotaExceeded."""
        if self._usage is None or self._is_settled or not (characters or heard_s):
            return
        self._usage.charge(characters=characters, heard_s=heard_s)
        self.characters += characters
        self.heard_s += heard_s

    def refund(self, *, characters: int = 0, heard_s: float = 0.0) -> None:
        """Refund a part whose work was refused, at most what is reserved."""
        characters, heard_s = min(characters, self.characters), min(heard_s, self.heard_s)
        if self._usage is None or self._is_settled or not (characters or heard_s):
            return
        self._usage.refund(characters=characters, heard_s=heard_s)
        self.characters -= characters
        self.heard_s -= heard_s

    def settle(self, *, is_refused: bool = False) -> None:
        """End it. If the request was refused, all of it is refunded."""
        if is_refused:
            self.refund(characters=self.characters, heard_s=self.heard_s)
        self._is_settled = True

    @contextmanager
    def unless_refused(self) -> Generator[None]:
        """Refund all of it if the block, which starts the request, raises."""
        try:
            yield
        except BaseException:
            self.settle(is_refused=True)
            raise

    def count_audio(self, num_samples: int, sample_rate: int) -> None:
        """Count generated audio, which is not charged for."""
        if self._usage is not None:
            self._usage.spoken_s += num_samples / sample_rate
