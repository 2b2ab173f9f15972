"""The user's audio: the input buffer, and live transcription of speech."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import numpy as np

from izwi.arrays import Float32
from izwi.audio.resample import StreamResampler
from izwi_api.realtime.hearing.noise import Distance, NoiseReducer
from izwi_api.realtime.hearing.vad import SpeechFrame, VoiceDetector
from izwi_api.realtime.protocol.errors import EventError
from izwi_api.realtime.protocol.formats import INPUT_RATE, InputDecoder, WireFormat
from izwi_api.realtime.protocol.items import Content
from izwi_api.realtime.protocol.settings import Transcription
from izwi_api.services.context import Services
from izwi_api.services.transcription.live import (
    LiveTranscription,
    PartialText,
    SegmentText,
    open_live_transcription,
)
from izwi_api.settings import VadName

logger = logging.getLogger(__name__)

_MAX_BUFFER_MS = 15 * 60_000
# A change of formats converts what is there at once, and may be asked for again and again.
_MAX_CONVERTED_MS = 10_000
_SAMPLES_PER_MS = INPUT_RATE // 1000
# Audio between two updates of the transcript.
_CHUNK_S = 0.4


class _Samples:
    """A queue of samples: appended at the end, dropped from the start, with few copies.

    A turn may last minutes, and each append adds only milliseconds.
    """

    def __init__(self) -> None:
        self._room = np.zeros(INPUT_RATE, np.float32)
        self._start = self._stop = 0

    def __len__(self) -> int:
        return self._stop - self._start

    def append(self, samples: Float32) -> None:
        """Add samples at the end."""
        if self._stop + len(samples) > len(self._room):
            kept = self._room[self._start : self._stop]
            room = np.zeros(max(INPUT_RATE, 2 * (len(kept) + len(samples))), np.float32)
            room[: len(kept)] = kept
            self._room, self._start, self._stop = room, 0, len(kept)
        self._room[self._stop : self._stop + len(samples)] = samples
        self._stop += len(samples)

    def drop(self, count: int) -> None:
        """Drop this many of the oldest samples."""
        self._start += count

    def silence(self, start: int, stop: int) -> None:
        """Set the samples in a range to zero; positions count from the oldest sample."""
        self._room[self._start + start : self._start + min(stop, len(self))] = 0.0

    def copy(self, start: int, stop: int) -> Float32:
        """Return a copy of the samples in a range; positions count from the oldest sample."""
        return self._room[self._start + start : self._start + stop].copy()


class InputBuffer:
    """The client's uncommitted audio, as bytes in its own format and as samples at 16 kHz.

    Positions are milliseconds of audio since the session began. Noise is reduced in the samples,
    and not in the bytes.

    Attributes:
        wire: Format of the client's bytes.
    """

    def __init__(self, wire: WireFormat, vad: VadName):
        self.wire = wire
        self._decoder = InputDecoder(wire)
        self._detector = VoiceDetector(vad)
        self._bytes = bytearray()
        self._first_byte = 0  # position of the first sample kept
        self._rest = np.zeros(0, np.float32)  # of audio in an earlier format
        self._distance: Distance | None = None
        self._reducer: NoiseReducer | None = None
        self._samples = _Samples()
        self._first_sample = 0

    @property
    def end_ms(self) -> int:
        """End of the audio, in ms."""
        return int(self.wire.duration_ms(self._end_byte))

    def write(self, data: bytes) -> list[SpeechFrame]:
        """Append audio and return its frames. Raises EventError if the buffer is full."""
        self.check_room(len(data))
        self._bytes += data
        samples = np.concatenate([self._rest, self._decoder.write(data)])
        self._rest = self._rest[:0]
        if self._reducer is not None:
            samples = self._reducer.write(samples)
        self._samples.append(samples)
        return self._detector.write(samples)

    def check_room(self, num_bytes: int) -> None:
        """Check that so many more bytes may be appended. Raises EventError."""
        if self.wire.duration_ms(len(self._bytes) + num_bytes) > _MAX_BUFFER_MS:
            raise EventError(
                f"the input buffer holds at most {_MAX_BUFFER_MS // 60_000} minutes of audio; "
                "commit or clear it",
                "input_audio_buffer_full",
                param="audio",
            )

    def frame_ms(self, frame: SpeechFrame) -> int:
        """Return the position of a frame's end."""
        return frame.end // _SAMPLES_PER_MS

    def convert(self, wire: WireFormat) -> None:
        """Take audio in this format from now on; what is there is converted.

        Raises:
            EventError: There is too much to convert.
        """
        if wire == self.wire:
            return
        self.check_convertible(wire)
        self.drop_half_sample()
        kept = self.wire.decode(bytes(self._bytes))
        start_ms = self.wire.duration_ms(self._first_byte)
        self._rest = np.concatenate([self._rest, self._decoder.finish()])
        resampler = StreamResampler(self.wire.rate, wire.rate)
        samples = np.concatenate([resampler.write(kept), resampler.finish()])
        self.wire, self._decoder = wire, InputDecoder(wire)
        self._first_byte = wire.num_bytes(start_ms)
        self._bytes = bytearray(wire.encode(samples))

    def check_convertible(self, wire: WireFormat) -> None:
        """Check that the format may become another one now. Raises EventError."""
        if wire != self.wire and self.wire.duration_ms(len(self._bytes)) > _MAX_CONVERTED_MS:
            raise EventError(
                f"the input buffer has more than {_MAX_CONVERTED_MS // 1000} seconds of audio in "
                "another format; commit or clear it before the format changes",
                "input_audio_buffer_not_empty",
                param="session.audio.input.format",
            )

    def reduce_noise(self, distance: Distance | None) -> None:
        """Reduce noise of a microphone at this distance from now on; None reduces none."""
        if distance == self._distance:
            return
        if self._reducer is not None:
            self._rest = np.concatenate([self._reducer.finish(), self._rest])
        self._distance = distance
        self._reducer = None if distance is None else NoiseReducer(distance)

    def detect_with(self, vad: VadName) -> None:
        """Detect speech with this detector from now on."""
        self._detector.use(vad)

    def clear(self) -> None:
        """Drop all audio."""
        self.drop(self.end_ms)
        self.drop_half_sample()

    def drop_half_sample(self) -> None:
        """Drop an incomplete sample at the end: the client begins anew with the next byte."""
        self._decoder.drop_half_sample()
        del self._bytes[len(self._bytes) - len(self._bytes) % self.wire.sample_bytes :]

    def content(self, start_ms: int, end_ms: int) -> Content:
        """Return the audio between two positions as the content of a message."""
        audio, duration_ms = self.audio(start_ms, end_ms), float(end_ms - start_ms)
        return Content("input_audio", audio=audio, audio_ms=duration_ms, wire=self.wire)

    def audio(self, start_ms: int, end_ms: int) -> bytes:
        """Return the bytes between two positions, as far as they are kept."""
        start, end = (self._byte(place) - self._first_byte for place in (start_ms, end_ms))
        return bytes(self._bytes[max(0, start) : max(0, end)])

    def samples(self, start_ms: int, end_ms: int | None = None) -> Float32:
        """Return the samples at 16 kHz from a position to another one, or to the end."""
        start = self._sample(start_ms)
        stop = len(self._samples) if end_ms is None else self._sample(end_ms)
        return self._samples.copy(start, max(start, stop))

    def silence(self, frame: SpeechFrame) -> None:
        """Exclude a frame from transcription: zero its samples and keep its bytes."""
        stop = frame.end - self._first_sample
        self._samples.silence(max(0, stop - len(frame.samples)), max(0, stop))

    def drop(self, before_ms: int) -> None:
        """Drop the audio before a position."""
        place = max(self._first_byte, min(self._byte(before_ms), self._end_byte))
        del self._bytes[: place - self._first_byte]
        self._first_byte = place
        start = self._sample(before_ms)
        self._samples.drop(start)
        self._first_sample += start

    @property
    def _end_byte(self) -> int:
        return self._first_byte + len(self._bytes)

    def _byte(self, place_ms: int) -> int:
        return self.wire.num_bytes(place_ms)

    def _sample(self, place_ms: int) -> int:
        place = round(place_ms * _SAMPLES_PER_MS) - self._first_sample
        return min(len(self._samples), max(0, place))


class LiveTranscriber:
    """Transcribes one stretch of speech while it is spoken. Call `close` when done."""

    def __init__(
        self, services: Services, setting: Transcription, on_text: Callable[[str, str], None]
    ):
        """Start. `on_text` is called with the transcript so far, and with its stable part."""
        self._services, self._setting, self._on_text = services, setting, on_text
        self._fed: asyncio.Queue[Float32 | None] = asyncio.Queue()
        self._is_finished = False
        self._live: LiveTranscription | None = None
        self._segments: list[str] = []
        self._work = asyncio.create_task(self._run())
        self._work.add_done_callback(_note_failure)

    def feed(self, samples: Float32) -> None:
        """Add samples at 16 kHz."""
        if len(samples) and not self._is_finished:
            self._fed.put_nowait(samples)

    def finish(self) -> asyncio.Task[str]:
        """End the input and return the task whose result is the transcript."""
        if not self._is_finished:
            self._is_finished = True
            self._fed.put_nowait(None)
        return self._work

    def close(self) -> None:
        """Cancel the transcription."""
        self._work.cancel()

    def refund(self) -> None:
        """Refund what the key was charged for it."""
        if self._live is not None:
            self._live.refund()

    async def _run(self) -> str:
        model = self._services.registry.transcription(self._setting.model or "")
        live = self._live = await open_live_transcription(
            model,
            language=self._setting.language,
            context=self._setting.context,
            chunk_s=_CHUNK_S,
        )
        async with live:
            reading = asyncio.create_task(self._read(live))
            try:
                while (samples := await self._fed.get()) is not None:
                    await live.feed(samples)
                await live.finish()
                await reading
            finally:
                reading.cancel()
        return self._joined().strip()

    def _joined(self, more: str = "") -> str:
        return " ".join(filter(None, [*self._segments, more.strip()]))

    async def _read(self, live: LiveTranscription) -> None:
        async for event in live:
            match event:
                case SegmentText(text=text):
                    self._segments.append(text.strip())
                    self._on_text(self._joined(), self._joined())
                case PartialText(stable=stable, unstable=unstable):
                    self._on_text(self._joined(f"{stable}{unstable}"), self._joined(stable))


def empty_transcript() -> asyncio.Future[str]:
    """Return an empty transcript."""
    transcript: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    transcript.set_result("")
    return transcript


def _note_failure(work: asyncio.Task[str]) -> None:
    """Log why the transcript is missing. Tasks that await it get the error as well."""
    if not work.cancelled() and (error := work.exception()) is not None:
        logger.warning("a turn could not be transcribed: %s", error)
