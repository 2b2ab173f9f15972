"""Speech probability of each frame of a stream, from WebRTC's or Silero's detector."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import webrtcvad

from izwi.arrays import Float32
from izwi_api.realtime.hearing.background import Background
from izwi_api.realtime.hearing.high_pass import HighPass
from izwi_api.realtime.hearing.pitch import PitchTracker
from izwi_api.realtime.hearing.silero import Silero
from izwi_api.realtime.protocol.formats import INPUT_RATE
from izwi_api.settings import VadName

FRAME_MS = 20
FRAME_SAMPLES = INPUT_RATE * FRAME_MS // 1000
# WebRTC's detector has four settings, from permissive to strict. The share that detects speech is
# the probability: a threshold of 0.5 requires two.
_MODES = (0, 1, 2, 3)
_VOICED = 0.5
# Quieter frames are never speech: -55 dBFS, quieter than speech at any usual distance.
_LEAST_LEVEL = 10 ** (-55 / 20)

# WebRTC's detector reports speech at the start of any stream.
_WARM_UP_FRAMES = 6
# Spectral flatness of 40 ms between 100 and 4000 Hz that makes a frame noise. White noise has
# 0.48 or more in 99 % of windows; 90 % of the windows of speech in such noise at 10 dB have less.
_NOISE_FLATNESS = 0.47
_BAND = slice(4, 160)  # of 25 Hz
_TAPER = np.hanning(2 * FRAME_SAMPLES)


class SpeechFrame(NamedTuple):
    """A frame of 20 ms of a stream.

    Attributes:
        end: Position of its end, in samples at 16 kHz.
        speech: Probability of speech.
        samples: Its samples.
        level_db: Level relative to full scale (dBFS).
        is_voiced: Whether it is speech with a pitch.
        is_hidden: Whether it sounds like speech and was taken for background.
    """

    end: int
    speech: float
    samples: Float32
    level_db: float = 0.0
    is_voiced: bool = False
    is_hidden: bool = False


class FrameDetector(Protocol):
    """Tells the probability of speech in each frame of one stream."""

    def judge(self, frame: Float32) -> float:
        """Process the next frame, (FRAME_SAMPLES,) at 16 kHz, and return its probability."""
        ...


class WebRtc:
    """WebRTC's detector."""

    def __init__(self) -> None:
        self._detectors = [webrtcvad.Vad(mode) for mode in _MODES]

    def judge(self, frame: Float32) -> float:
        """Return the share of the four settings that detect speech."""
        pcm = (np.clip(frame, -1.0, 1.0) * 32767.0).astype(np.int16).tobytes()
        # each tracks a noise floor, so all must see every frame
        votes = [detector.is_speech(pcm, INPUT_RATE) for detector in self._detectors]
        return float(sum(votes) / len(votes))


_DETECTORS: dict[VadName, Callable[[], FrameDetector]] = {"webrtc": WebRtc, "silero": Silero}


class VoiceDetector:
    """Streaming voice activity detector.

    WebRTC's detector takes the start of a stream and noise for speech, so these are checked.
    Silero's does not, and the checks would hide speech in noise from it.

    Args:
        vad: What detects speech.
    """

    def __init__(self, vad: VadName = "webrtc") -> None:
        self._vad, self._detector = vad, _DETECTORS[vad]()
        self._rest = np.zeros(0, np.float32)
        self._end = 0
        self._before = np.zeros(FRAME_SAMPLES, np.float32)
        self._high_pass = HighPass()
        self._background = Background()
        self._pitch = PitchTracker()

    def use(self, vad: VadName) -> None:
        """Detect speech with another detector from the next frame on."""
        if vad != self._vad:
            self._vad, self._detector = vad, _DETECTORS[vad]()

    def write(self, samples: Float32) -> list[SpeechFrame]:
        """Add samples at 16 kHz and return the frames that are complete."""
        pending = np.concatenate([self._rest, samples])
        count = len(pending) // FRAME_SAMPLES
        self._rest = pending[count * FRAME_SAMPLES :]
        frames = pending[: count * FRAME_SAMPLES].reshape(count, FRAME_SAMPLES)
        return [self._judge(frame) for frame in frames]

    def _judge(self, frame: Float32) -> SpeechFrame:
        self._end += len(frame)
        filtered = self._high_pass.write(frame)
        level = float(np.sqrt(np.mean(np.square(filtered))))
        window, self._before = np.concatenate([self._before, filtered]), filtered
        speech = self._detector.judge(filtered)
        is_webrtc = self._vad == "webrtc"
        is_hidden = self._background.hides(filtered, speech >= _VOICED, knows_pauses=not is_webrtc)
        is_warm = not is_webrtc or self._end > _WARM_UP_FRAMES * FRAME_SAMPLES
        sounds_like_speech = speech >= _VOICED and is_warm and level >= _LEAST_LEVEL
        is_noise = is_webrtc and _flatness(window) >= _NOISE_FLATNESS
        if not is_warm or is_hidden or is_noise or level < _LEAST_LEVEL:
            speech = 0.0
        is_voiced = speech >= _VOICED and self._pitch.is_voiced(window)
        if speech < _VOICED:
            self._pitch.skip()
        level_db = 20.0 * float(np.log10(level + 1e-6))
        is_hidden = sounds_like_speech and speech < _VOICED
        return SpeechFrame(self._end, speech, frame, level_db, is_voiced, is_hidden)


def _flatness(window: Float32) -> float:
    """Return the ratio of geometric to arithmetic mean power: 1 if flat, near 0 for a voice."""
    power = np.abs(np.fft.rfft(window * _TAPER)[_BAND]) ** 2 + 1e-12
    return float(np.exp(np.mean(np.log(power))) / np.mean(power))
