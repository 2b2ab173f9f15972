"""Audio for a track: the server plays it in real time, so it knows what was played.

Responses are played in order at 1x. A pause stops at the sample; a clear drops what was not played.
No side effects except the events it emits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from izwi_api.realtime.protocol.formats import FORMATS

WIRE = FORMATS["audio/pcm"]
# Maximum audio in the queue.
LEAD_MS = 200.0

Emit = Callable[..., None]


class Speaker:
    """The audio queue of one session: 16-bit PCM at 24 kHz. Use it from one event loop.

    Args:
        emit: Sends `output_audio_buffer.*`.
    """

    def __init__(self, emit: Emit):
        self._emit = emit
        self._queue: deque[tuple[str, bytearray]] = deque()  # response id, its audio
        self._played: dict[str, int] = {}  # bytes
        self._complete: set[str] = set()
        self._playing = ""  # the response last reported as playing
        self._is_paused = self._was_dry = False
        self._gaps: dict[str, tuple[int, int]] = {}  # number, bytes

    @property
    def buffered_ms(self) -> float:
        """Return the duration of the queued audio."""
        return WIRE.duration_ms(sum(len(audio) for _, audio in self._queue))

    @property
    def is_playing(self) -> bool:
        """Return whether there is audio to play, and no pause."""
        return bool(self._queue) and not self._is_paused

    def played_ms(self, response_id: str) -> float:
        """Return how much of a response was played."""
        return WIRE.duration_ms(self._played.get(response_id, 0))

    def gaps(self, response_id: str) -> tuple[int, float]:
        """Return how often a response had nothing to play, and for how long in milliseconds."""
        count, num_bytes = self._gaps.get(response_id, (0, 0))
        return count, WIRE.duration_ms(num_bytes)

    def play(self, response_id: str, audio: bytes) -> None:
        """Append audio of a response to the queue."""
        if not self._queue or self._queue[-1][0] != response_id:
            self._queue.append((response_id, bytearray()))
        self._queue[-1][1].extend(audio)

    def pause(self) -> None:
        """Pause: play silence from now on."""
        self._is_paused = True

    def resume(self) -> None:
        """Resume with the next sample."""
        self._is_paused = False

    def complete(self, response_id: str) -> None:
        """Mark the audio of a response as complete."""
        self._complete.add(response_id)
        self._tell_end()

    def clear(self) -> None:
        """Drop all audio that was not played."""
        self._queue.clear()
        self._is_paused = False
        if self._playing:
            self._emit("output_audio_buffer.cleared", response_id=self._playing)
        self._playing = ""

    def read(self, num_bytes: int) -> bytes:
        """Return the audio to play next; silence if the queue is empty."""
        played = bytearray()
        while self._queue and not self._is_paused and len(played) < num_bytes:
            response_id, audio = self._queue[0]
            piece = audio[: num_bytes - len(played)]
            del audio[: len(piece)]
            played += piece
            if not audio:
                self._queue.popleft()
            if piece and response_id != self._playing:
                self._playing = response_id
                self._emit("output_audio_buffer.started", response_id=response_id)
            self._played[response_id] = self._played.get(response_id, 0) + len(piece)
        self._count_gap(num_bytes - len(played))
        self._tell_end()
        return bytes(played).ljust(num_bytes, b"\0")

    def _count_gap(self, num_missing: int) -> None:
        playing = self._playing
        is_dry = num_missing > 0 and bool(playing) and not self._is_paused
        is_dry &= playing not in self._complete
        if is_dry:
            count, num_bytes = self._gaps.get(playing, (0, 0))
            self._gaps[playing] = (count + (not self._was_dry), num_bytes + num_missing)
        self._was_dry = is_dry

    def _tell_end(self) -> None:
        if self._playing and not self._queue and self._playing in self._complete:
            self._emit("output_audio_buffer.stopped", response_id=self._playing)
            self._complete.discard(self._playing)
            self._playing = ""
